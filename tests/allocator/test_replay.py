"""The replay against the simulated allocator, which knows what really happened."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapana.allocator.layout import ALLOCATED, FREE, PENDING
from snapana.allocator.replay import NEVER, DeviceReplay
from snapana.allocator.settings import AllocatorSettings
from tests.builders import History, histories, model
from tests.conftest import load_sample

MIB = 2**20
CURVES = ("allocated", "active", "requested", "reserved")
thorough = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def replay(history: History, **options: int) -> DeviceReplay:
    snapshot = history.snapshot(**options)
    return snapshot.replay[0]


@thorough
@given(histories())
def test_curves_pass_through_what_the_allocator_said(history: History) -> None:
    found = replay(history) if history.events else None
    for event, figures in history.truth.items():
        if found is not None and event >= 0:
            assert tuple(int(found.curves[name].iloc[event + 1]) for name in CURVES) == figures
    assert found is None or found.coverage.mismatches == {}


@thorough
@given(histories(), st.data())
def test_a_cut_window_keeps_the_totals(history: History, data: st.DataObject) -> None:
    """Whatever the ring has dropped: the end is exact, reserved is exact all along, nothing is negative."""
    if not history.events or not list(history.sim.segments()):
        return
    kept = data.draw(st.integers(1, len(history.events)))
    whole, part = replay(history), replay(history, max_entries=kept)
    assert (part.curves["reserved"].to_numpy() == whole.curves["reserved"].to_numpy()[-kept - 1 :]).all()
    assert part.curves.iloc[-1][list(CURVES)].tolist() == whole.curves.iloc[-1][list(CURVES)].tolist()
    assert (part.curves[list(CURVES)].to_numpy() >= 0).all()
    # Requested bytes are recorded with the free, so they are exact as well.
    assert (part.curves["requested"].to_numpy() == whole.curves["requested"].to_numpy()[-kept - 1 :]).all()
    if not part.coverage.guessed_blocks:
        assert (part.curves["allocated"].to_numpy()[1:] == whole.curves["allocated"].to_numpy()[-kept:]).all()


@thorough
@given(histories(), st.data())
def test_blocks_and_holes_tile_every_segment(history: History, data: st.DataObject) -> None:
    if not history.events:
        return
    found = replay(history)
    layout = found.layout(data.draw(st.integers(-1, len(history.events) - 1)))
    assert layout.overlaps == 0
    sums = layout.ranges.groupby("segment")["size"].sum()
    assert sums.reindex(layout.segments.index).tolist() == layout.segments["size"].tolist()
    row = found.curves.iloc[layout.event + 1]
    by_state = layout.ranges.groupby("state")["size"].sum()
    assert by_state.get(ALLOCATED, 0) == row["allocated"]
    assert by_state.get(ALLOCATED, 0) + by_state.get(PENDING, 0) == row["active"]
    assert by_state.sum() == row["reserved"]


@thorough
@given(histories())
def test_final_layout_is_the_allocators(history: History) -> None:
    if not history.events:
        return
    layout = replay(history).layout(len(history.events) - 1)
    got = [(int(row.address), int(row.size), int(row.state)) for row in layout.ranges.itertuples()]
    want = [
        (block.addr, block.size, ALLOCATED if block.allocated else PENDING if block.pending else FREE)
        for run in history.sim.segments()
        for block in run
    ]
    assert got == want


def test_a_large_block_owns_the_remainder_that_is_not_split_off() -> None:
    history = History()
    addr = history.alloc(19 * MIB + 512 * 1024)
    found = replay(history)
    life = found.allocations.iloc[0]
    assert (int(life["addr"]), int(life["requested"]), int(life["size"])) == (addr, 19 * MIB + 512 * 1024, 20 * MIB)


def test_blocks_over_the_split_limit_are_never_split() -> None:
    history = History(AllocatorSettings(max_split_size=24 * MIB))
    first = history.alloc(60 * MIB)
    history.free(first)
    assert history.alloc(50 * MIB) == first
    assert replay(history).allocations["size"].tolist() == [60 * MIB, 60 * MIB]


def test_a_deferred_free_is_active_but_not_allocated() -> None:
    history = History()
    addr = history.alloc(4 * MIB)
    history.free_later(addr)
    history.alloc(MIB)
    waiting = len(history.events) - 1
    history.complete(addr)
    curves = replay(history).curves
    assert (int(curves["allocated"].iloc[waiting + 1]), int(curves["active"].iloc[waiting + 1])) == (MIB, 5 * MIB)
    assert int(curves["active"].iloc[-1]) == MIB


def test_what_existed_before_the_window_is_told_apart() -> None:
    history = History(recording=False)
    kept, freed = history.alloc(3 * MIB), history.alloc(512)
    history.recording = True
    history.alloc(2 * MIB)
    history.free(freed)
    found = replay(history)
    assert found.coverage.preexisting_blocks == 2
    assert found.coverage.preexisting_bytes == 3 * MIB + 512
    assert found.coverage.unmatched_frees == 1
    assert not found.coverage.complete
    before = found.allocations[found.allocations["alloc"] == NEVER]
    assert sorted(before["addr"].tolist()) == sorted([kept, freed])


def test_frees_without_completions_still_end_lives() -> None:
    """`skip_actions` can leave either kind of free out."""
    history = History()
    history.free(history.alloc(512))
    history.alloc(1024)
    for left_out in ("free_completed", "free_requested"):
        document = copy.deepcopy(history.document())
        trace = document["device_traces"][0]
        document["device_traces"][0] = [entry for entry in trace if entry["action"] != left_out]
        found = model(document).replay[0]
        assert int(found.curves["allocated"].iloc[-1]) == 1024
        assert found.coverage.unmatched_frees == 0


def test_lost_events_are_counted() -> None:
    history = History()
    addr = history.alloc(512)
    history.free(addr)
    assert history.alloc(512) == addr
    document = history.document()
    trace = document["device_traces"][0]
    document["device_traces"][0] = [entry for entry in trace if not entry["action"].startswith("free")]
    found = model(document).replay[0]
    assert found.coverage.mismatches == {"lost_frees": 1}
    assert int(found.curves["allocated"].iloc[-1]) == 512


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda document: document["segments"][0]["blocks"].pop(), "segments_not_tiled"),
        (lambda document: document["segments"][0].update(total_size=1), "reserved_differs_at_end"),
        (lambda document: document["segments"].pop(), "segments_missing_at_end"),
        (
            lambda document: document["device_traces"][0].append(
                {"action": "snapshot", "addr": 0, "size": 1, "stream": 0, "time_us": 2**60}
            ),
            "snapshot_events_differ",
        ),
    ],
)
def test_disagreements_with_the_file_are_counted(spoil: object, kind: str) -> None:
    history = History()
    history.alloc(512)
    history.alloc(512)
    document = copy.deepcopy(history.document())
    spoil(document)  # type: ignore[operator]
    found = model(document).replay[0]
    if kind in {"reserved_differs_at_end"}:
        assert not found.coverage.complete
    else:
        assert kind in found.coverage.mismatches


def test_several_devices_are_apart() -> None:
    one, two = History(), History()
    one.alloc(512)
    two.alloc(3 * MIB)
    first, second = one.document(), two.document()
    for segment in second["segments"]:
        segment["device"] = 2
    first["segments"] += second["segments"]
    first["device_traces"] = [first["device_traces"][0], [], second["device_traces"][0]]
    snapshot = model(first)
    assert snapshot.devices == (0, 2)
    assert int(snapshot.replay[0].curves["allocated"].max()) == 512
    assert int(snapshot.replay[2].curves["allocated"].max()) == 3 * MIB
    assert set(snapshot.replay.allocations["device"]) == {0, 2}
    assert snapshot.replay.coverage[2].complete


def test_expandable_segments_are_mapped_pages() -> None:
    """The layout's segments are contiguous mapped ranges, at any instant."""
    found = load_sample("expandable").replay[0]
    layout = found.layout(len(found.events) - 1)
    final = load_sample("expandable").segments
    assert layout.segments["address"].tolist() == final["address"].tolist()
    assert layout.segments["size"].tolist() == final["size"].tolist()
    half = found.layout(len(found.events) // 2)
    assert int(half.segments["size"].sum()) == int(found.curves["reserved"].iloc[half.event + 1])


def test_allocations_hold_their_own_events() -> None:
    """A life's events are of its address and in order."""
    replayed = load_sample("train_adam").replay[0]
    table, addr = replayed.allocations, replayed.events["addr"].to_numpy()
    for column in ("alloc", "free_requested", "free_completed"):
        seen = table[table[column] >= 0]
        assert (addr[seen[column].to_numpy()] == seen["addr"].to_numpy()).all()
    ended = table[table["free_completed"] >= 0]
    assert (np.diff(ended[["alloc", "free_requested", "free_completed"]].to_numpy(), axis=1) > 0).all()
