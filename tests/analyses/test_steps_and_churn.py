"""Steps and traffic with the driver."""

from __future__ import annotations

import pytest

from snapana.analyses.churn import churn
from snapana.analyses.steps import steps
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
