"""Memory of profiler traces against the snapshot of the same run, and the join of both."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import snapana
from snapana.analyses.cost import cost
from snapana.analyses.join import Join, join
from snapana.analyses.steps import steps
from snapana.analyses.traces import asked_by, trace_overview
from snapana.errors import SnapanaError
from snapana.trace.memory import TraceMemory, build_memory
from snapana.trace.model import Trace
from tests.conftest import SAMPLES, load_sample, truth_of
from tests.test_truth import highest

MIB = 2**20
TRACES = {
    "train_adam": "train_adam.trace.json.xz",
    "train_empty_cache": "train_empty_cache.trace.json.xz",
    "stream_trace": "stream_trace.trace.json.xz",
    "ddp_rank2": "ddp_rank2.pt.trace.json.xz",
}


@cache
def trace_of(name: str) -> Trace:
    return snapana.load_trace(SAMPLES / TRACES[name])


@cache
def built_of(name: str) -> TraceMemory:
    return build_memory(trace_of(name))


@cache
def joined(name: str) -> Join:
    return join(load_sample(name), trace_of(name), built_of(name), 0)


@pytest.mark.parametrize("name", TRACES)
def test_peaks_equal_pytorchs(name: str) -> None:
    curves = built_of(name).snapshot.replay[0].curves
    assert int(curves["allocated"].max()) == highest(truth_of(name), "allocated")
    assert int(curves["reserved"].max()) == highest(truth_of(name), "reserved")
    assert built_of(name).lost_bytes[0] == 0


@pytest.mark.parametrize("name", TRACES)
def test_every_event_is_in_the_snapshot(name: str) -> None:
    found = joined(name)
    assert (found.unmatched, found.sizes_differ) == (0, 0)
    assert found.matched == int((trace_of(name).memory.device_type == 1).sum())
    # The clocks of both agree to about a microsecond.
    assert abs(found.clock_offset_us) < 5


@pytest.mark.parametrize("name", TRACES)
def test_curves_equal_the_snapshots(name: str) -> None:
    """After each event that both have, allocated and reserved are the same, to the byte."""
    mine, theirs = load_sample(name).replay[0].curves, built_of(name).snapshot.replay[0].curves
    of_event = joined(name).of_event
    both = np.flatnonzero(of_event >= 0)
    left = mine["allocated"].to_numpy()[both + 1]
    right = theirs["allocated"].to_numpy()[of_event[both] + 1]
    assert (left == right).all()
    assert (mine["reserved"].to_numpy()[both + 1] == theirs["reserved"].to_numpy()[of_event[both] + 1]).all()


@pytest.mark.parametrize("name", TRACES)
def test_lives_sum_to_the_curve(name: str) -> None:
    replay = built_of(name).snapshot.replay[0]
    for event in np.linspace(-1, len(replay.events) - 1, 40).astype(int).tolist():
        assert int(replay.live(event)["size"].sum()) == int(replay.curves["allocated"].iloc[event + 1])


@pytest.mark.parametrize("what", ["operator", "module", "function", "annotation", "forward_operator"])
def test_traffic_by_name_closes(what: str) -> None:
    built = built_of("train_adam")
    replay = built.snapshot.replay[0]
    event = replay.peak_event()
    table = asked_by(built, 0, what, event).table
    assert int(table["at_peak"].sum()) == int(replay.curves["allocated"].max())
    assert (table["net"] == table["allocated"] - table["freed"]).all()
    memory = trace_of("train_adam").memory
    asked = memory.bytes[(memory.device_type == 1) & (memory.bytes > 0)]
    assert int(table["allocated"].sum()) == int(asked.sum())


def test_who_asked() -> None:
    built = built_of("train_adam")
    modules = set(asked_by(built, 0, "module", 0).table["name"])
    assert "nn.Module: Linear_0" in modules
    operators = asked_by(built, 0, "operator", 0).table.set_index("name")["allocated"]
    assert operators["aten::addmm"] > 0
    assert "aten::zeros_like" in operators.index
    forward = asked_by(built, 0, "forward_operator", 0).table.set_index("name")["allocated"]
    assert forward["aten::addmm"] > 0
    annotations = set(asked_by(built, 0, "annotation", 0).table["name"])
    assert "Optimizer.step#AdamW.step" in annotations


def test_backward_memory_belongs_to_the_line_of_its_forward() -> None:
    """The backward thread has no Python: operators carry the number of the forward one."""
    (device,) = [one for one in trace_overview(trace_of("train_adam")).devices if one.device == 0]
    sites = device.peak.sites.set_index("site")["bytes"]
    assert sites["scenarios.py:89 loss_of"] >= 3 * 64 * MIB
    assert "(no stack)" not in sites.index


def test_the_emptied_cache_costs_a_sixth_of_the_step() -> None:
    trace, built = trace_of("train_empty_cache"), built_of("train_empty_cache")
    replay = built.snapshot.replay[0]
    found = cost(trace, 0, steps(built.snapshot, 0), replay.curves, replay.events)
    assert found.steps["allocs"].tolist() == found.steps["frees"].tolist() == [29] * 4
    assert set(found.steps["reserved_up"]) == set(found.steps["reserved_down"]) == {528 * MIB}
    assert found.share == pytest.approx(0.154, abs=0.01)
    assert (found.emptied, found.emptied_at) == (6, "scenarios.py(134): one")


def test_a_plain_run_costs_next_to_nothing() -> None:
    trace, built = trace_of("train_adam"), built_of("train_adam")
    replay = built.snapshot.replay[0]
    found = cost(trace, 0, steps(built.snapshot, 0), replay.curves, replay.events)
    assert found.emptied == 0
    assert float(found.steps["share"].iloc[-1]) < 0.01


def test_other_runs_are_refused() -> None:
    with pytest.raises(SnapanaError) as error:
        join(load_sample("train_adam"), trace_of("stream_trace"), built_of("stream_trace"), 0)
    assert error.value.code == "join.different_runs"


def test_a_trace_that_goes_beyond_the_window_joins() -> None:
    """Of a snapshot that begins within the trace only the common part can match."""
    snapshot = load_sample("train_adam")
    cut = replace(snapshot, events=snapshot.events.iloc[3000:].assign(index=range(len(snapshot.events) - 3000)))
    found = join(cut, trace_of("train_adam"), built_of("train_adam"), 0)
    assert found.unmatched == 0
    assert 0 < found.matched < joined("train_adam").matched


def test_the_cpu_is_a_device_of_its_own() -> None:
    devices = trace_overview(trace_of("train_adam")).devices
    assert [device.device for device in devices] == [-1, 0]
    assert devices[0].peak.reserved is None
    assert devices[0].profile is not None
    assert devices[0].profile.device_type == 0
    assert devices[1].profile is not None
    assert devices[1].profile.total_memory == truth_of("train_adam")["total_memory"]


def test_leaks_and_steps_of_a_trace() -> None:
    (device,) = [one for one in trace_overview(trace_of("ddp_rank2")).devices if one.device == 0]
    assert device.steps.source == "Optimizer.step#AdamW.step"
    assert device.leaks.table["bytes_per_step"].tolist() == [6_291_456]


def test_the_operator_that_made_the_node_is_the_forward_one() -> None:
    """A slice has the number of the embedding that comes next, but makes no node itself."""
    forward = asked_by(built_of("train_adam"), 0, "forward_operator", 0).table.set_index("name")["allocated"]
    assert "aten::slice" not in forward.index
    assert forward["aten::embedding"] >= 64 * MIB


def _without(trace: Trace, events: list[int]) -> Trace:
    memory = trace.memory
    kept = {name: np.delete(values, events) for name, values in vars(memory).items()}
    return replace(trace, memory=type(memory)(**kept))


def test_lost_events_do_not_spoil_the_join() -> None:
    snapshot, trace = load_sample("train_adam"), trace_of("train_adam")
    own = np.flatnonzero(trace.memory.device_type == 1)
    lost = own[[len(own) // 4, len(own) // 2, 3 * len(own) // 4]].tolist()
    short = _without(trace, lost)
    found = join(snapshot, short, build_memory(short), 0)
    assert found.matched >= len(own) - 10
    assert found.sizes_differ == 0


def test_a_second_run_with_the_same_addresses_is_refused() -> None:
    snapshot, trace = load_sample("train_adam"), trace_of("train_adam")
    later = replace(trace, base_us=trace.base_us + 3_600_000_000)
    with pytest.raises(SnapanaError, match="second run"):
        join(snapshot, later, build_memory(later), 0)
