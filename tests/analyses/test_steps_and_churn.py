"""Steps and traffic with the driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snapana.analyses.churn import churn
from snapana.analyses.steps import steps
from snapana.snapshot.model import Snapshot
from tests.builders import History, model
from tests.conftest import load_sample, truth_of

MIB = 2**20


def test_steps_end_where_the_optimizer_does() -> None:
    found = steps(load_sample("train_adam"), 0)
    assert found.source == "Optimizer.step#AdamW.step"
    peaks = [
        row["allocated_bytes.all.peak"] for row in truth_of("train_adam")["steps"] if row["tag"].startswith("step")
    ]
    assert len(found) == len(peaks)
    assert max(found.table["peak_allocated"]) == max(peaks)
    assert (found.table["start_event"].iloc[1:].to_numpy() == found.table["end_event"].iloc[:-1].to_numpy() + 1).all()


def test_the_profilers_steps_come_first() -> None:
    history = History()
    for number in range(3):
        with history.annotate(f"ProfilerStep#{number}"):
            history.alloc(512)
            history.step()
    found = steps(history.snapshot(), 0)
    assert found.source == "ProfilerStep#"
    assert found.table["name"].tolist() == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]


def test_without_marks_or_times_there_are_no_steps() -> None:
    assert len(steps(load_sample("leak_none_kv"), 0)) == 0
    assert len(steps(load_sample("no_history"), 0)) == 0


def test_empty_cache_is_recognised_by_its_call() -> None:
    snapshot = load_sample("train_empty_cache")
    found = churn(snapshot, 0, steps(snapshot, 0))
    assert (found.segment_allocs, found.segment_frees) == (198, 162)
    assert found.empty_cache_calls == len(steps(snapshot, 0))
    assert found.emptied["named"].tolist() == [True]
    assert found.emptied["calls"].tolist() == [found.empty_cache_calls]


def test_what_a_failing_allocation_releases_is_no_empty_cache() -> None:
    snapshot = load_sample("oom_train")
    found = churn(snapshot, 0, steps(snapshot, 0))
    assert found.segment_frees == 27
    assert found.empty_cache_calls == 0


def test_without_stacks_nobody_can_tell() -> None:
    history = History()
    history.free(history.alloc(5 * MIB))
    history.empty_cache()
    document = history.document()
    assert churn(model(document), 0, steps(model(document), 0)).empty_cache_calls == 1
    for entry in document["device_traces"][0]:
        del entry["frames"]
    assert churn(model(document), 0, steps(model(document), 0)).empty_cache_calls is None


@pytest.mark.parametrize("name", ["train_adam", "graphs"])
def test_bytes_of_segments_are_those_of_reserved(name: str) -> None:
    snapshot = load_sample(name)
    found = churn(snapshot, 0, steps(snapshot, 0))
    assert found.allocated_bytes - found.freed_bytes == int(snapshot.replay[0].curves["reserved"].iloc[-1])


# ---- steps without marks


def unmarked(name: str) -> Snapshot:
    snapshot = load_sample(name)
    return replace(snapshot, annotations=snapshot.annotations.iloc[:0])


@pytest.mark.parametrize(
    ("name", "source", "count"),
    [
        ("train_adam", "allocations of the optimizer", 4),
        ("leak_hook", "allocations of the optimizer", 12),
        ("leak_small", "allocations of the optimizer", 40),
        ("llm_oom", "allocations of the optimizer", 8),
        ("stream_trace", "a repeating pattern of allocations", 30),
        ("streams", "a repeating pattern of allocations", 20),
        ("frag_3.8", "", 0),
        ("train_no_ctx", "", 0),
    ],
)
def test_steps_are_found_in_what_repeats(name: str, source: str, count: int) -> None:
    found = steps(unmarked(name), 0)
    assert (found.source, len(found)) == (source, count)
    assert found.confidence < 1


def test_unmarked_steps_end_where_marked_ones_do() -> None:
    marked, guessed = steps(load_sample("leak_hook"), 0).table, steps(unmarked("leak_hook"), 0).table
    # Between the last temporary of the optimizer and the end of its mark nothing is allocated, some is freed.
    assert (guessed["end_event"] <= marked["end_event"]).all()
    assert (guessed["end_event"].to_numpy()[1:] > marked["end_event"].to_numpy()[:-1]).all()


def test_requests_of_a_server_repeat() -> None:
    """No optimizer, no marks: three sorts of blocks for each request, of lengths that differ."""
    history = History()
    history.alloc(50 * MIB, "weights")
    for number in range(40):
        live = [history.alloc((100 + number % 7) * 10_000, site) for site in ("embed", "attend", "mlp", "attend")]
        for addr in live:
            history.free(addr)
    found = steps(history.snapshot(), 0)
    assert len(found) == 40
    assert found.source == "a repeating pattern of allocations"


def test_the_table_of_steps_adds_up() -> None:
    snapshot = load_sample("train_adam")
    replay, found = snapshot.replay[0], steps(snapshot, 0).table
    whole = replay.events.iloc[: int(found["end_event"].iloc[-1]) + 1]
    assert int(found["allocations"].sum()) == int((whole["action"] == "alloc").sum())
    assert int(found["segments"].sum()) == int((whole["action"] == "segment_alloc").sum())
    lives = replay.allocations
    assert int(found["allocated_bytes"].sum()) == int(lives["size"][lives["alloc"] < len(whole)].sum())


def test_orphans_and_overlaps_are_tolerated() -> None:
    history = History()
    history._annotate("ProfilerStep#0", "END")
    for number in range(1, 6):
        history._annotate(f"ProfilerStep#{number}", "START")
        history.free(history.alloc(MIB))
        if number != 3:
            history._annotate(f"ProfilerStep#{number}", "END")
        history.alloc(1000)
    found = steps(history.snapshot(), 0)
    assert found.source == "ProfilerStep#"
    assert found.table["end_event"].is_monotonic_increasing
    assert found.table["name"].tolist()[-5:] == [f"ProfilerStep#{number}" for number in range(1, 6)]
