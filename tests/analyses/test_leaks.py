"""Growth is found, and nothing else is called so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from snapana.analyses.leaks import Leaks, leaks, robust_slope
from snapana.analyses.steps import Steps, steps
from snapana.analyses.trend import _trend, step_course
from tests.builders import History
from tests.conftest import load_sample

MIB = 2**20


def found_in(name: str) -> Leaks:
    snapshot = load_sample(name)
    return leaks(snapshot, 0, steps(snapshot, 0))


@pytest.mark.parametrize(
    ("name", "function", "requested", "blocks"),
    [("leak_hook", "<lambda>", 2_097_152, 1), ("leak_small", "leak_small", 12, 3), ("ddp_rank2", "ddp", 6_291_456, 1)],
)
def test_recorded_leaks_are_found_to_the_byte(name: str, function: str, requested: int, blocks: int) -> None:
    table = found_in(name).table
    assert table["function"].tolist() == [function]
    assert table["bytes_per_step"].tolist() == [requested]
    assert table["blocks_per_step"].tolist() == [blocks]


def test_small_leaks_occupy_more_than_they_request() -> None:
    assert found_in("leak_small").table["block_bytes_per_step"].tolist() == [1536]


@pytest.mark.parametrize(
    "name", ["train_adam", "train_empty_cache", "hf_lora", "graphs", "cudagraph_trees", "train_late"]
)
def test_honest_training_has_none(name: str) -> None:
    assert len(found_in(name).table) == 0


def training(count: int, *, keep: object = None, cache: int = 0) -> History:
    """Train: weights, activations that come and go, and what ``keep`` adds at a step."""
    history = History()
    history.alloc(8 * MIB, "weights")
    cached: list[int] = []
    for number in range(count):
        activations = [history.alloc(size * MIB, "forward") for size in (3, 2)]
        if callable(keep):
            keep(history, number)
        if len(cached) < cache:
            cached.append(history.alloc(MIB, "cache"))
        for addr in activations:
            history.free(addr)
        history.step()
    return history


def judge(history: History) -> Leaks:
    snapshot = history.snapshot()
    return leaks(snapshot, 0, steps(snapshot, 0))


def test_a_leak_at_every_fourth_step_is_found() -> None:
    def keep(history: History, number: int) -> None:
        if number % 4 == 3:
            history.alloc(4096, "log")

    table = judge(training(40, keep=keep)).table
    assert table["function"].tolist() == ["log"]
    assert table["bytes_per_step"].iloc[0] == pytest.approx(1024, rel=0.05)


def test_a_cache_that_fills_and_stays_is_no_leak() -> None:
    assert len(judge(training(30, cache=8)).table) == 0


def test_a_sliding_window_is_no_leak() -> None:
    kept: list[int] = []

    def keep(history: History, number: int) -> None:
        kept.append(history.alloc(MIB, "window"))
        if len(kept) > 3:
            history.free(kept.pop(0))

    assert len(judge(training(30, keep=keep)).table) == 0


def test_too_few_steps_are_not_judged() -> None:
    found = judge(training(3, keep=lambda history, number: history.alloc(512, "log")))
    assert not found.judged
    assert len(found.table) == 0


def test_robust_slope_ignores_outliers() -> None:
    values = np.arange(0, 100, 5, dtype=np.int64)
    values[7] = 10_000
    assert robust_slope(values) == 5
    assert robust_slope(np.arange(3000, dtype=np.int64) * 2) == 2


# ---- what only looks like a leak, and what is said beside it


def kinds(history: History) -> dict[str, str]:
    table = judge(history).retained
    return {site.split()[-1]: kind for site, kind in zip(table["site"], table["kind"], strict=True)}


def test_kinds_of_what_is_kept() -> None:
    cycles: list[int] = []

    def keep(history: History, number: int) -> None:
        if 8 <= number < 25:
            history.alloc(MIB, "filling")
        if number in (20, 33):
            history.alloc(MIB, "seldom")
        cycles.append(history.alloc(MIB, "cycles"))
        if number % 6 == 5:
            for addr in cycles:
                history.free(addr)
            cycles.clear()

    found = kinds(training(41, keep=keep))
    assert found["filling"] == "cache_bounded"
    assert found["seldom"] == "one_off"
    assert found["cycles"] == "freed_late"


def test_where_siblings_are_freed_is_told() -> None:
    def keep(history: History, number: int) -> None:
        addr = history.alloc(5000, "log")
        if number % 2:
            history.free(addr, "flush")

    (row,) = judge(training(30, keep=keep)).table.itertuples()
    assert row.freed_at.endswith(" flush")
    assert row.freed == 15
    assert row.period == 2
    assert row.bytes_per_step == 2500


def test_retained_graphs_are_several_sites() -> None:
    """The line that keeps the graph allocates almost nothing; what it keeps is that of the forward pass."""
    table = found_in("leak_hook").table
    assert len(table) == 1
    assert table["first_event"].iloc[0] < table["last_event"].iloc[0]


def test_without_marks_the_same_leaks_are_found() -> None:
    for name, requested in (("leak_hook", 2_097_152), ("leak_small", 12), ("ddp_rank2", 6_291_456)):
        snapshot = load_sample(name)
        bare = replace(snapshot, annotations=snapshot.annotations.iloc[:0])
        found = leaks(bare, 0, steps(bare, 0))
        assert found.source == "allocations of the optimizer"
        assert found.table["bytes_per_step"].tolist() == [requested]


def test_without_steps_time_is_cut_into_parts() -> None:
    history = History()
    for number in range(400):
        history.free(history.alloc((number % 13 + 1) * 70_000, f"work_{number * number % 11}"))
        if number % 2:
            history.alloc(4096, "log")
    snapshot = history.snapshot()
    found = leaks(snapshot, 0, Steps("", 0.0, steps(snapshot, 0).table.iloc[:0]))
    assert found.source == "equal parts of time"
    assert [site.split()[-1] for site in found.table["site"]] == ["log"]
    assert float(found.table["confidence"].iloc[0]) <= 0.5


def test_a_loop_that_collects_is_not_accused_where_steps_were_guessed() -> None:
    snapshot = load_sample("streams")
    found = leaks(snapshot, 0, steps(snapshot, 0))
    assert len(found.table) == 0
    assert "unsure" in found.retained["kind"].tolist()


@pytest.mark.parametrize(
    ("name", "kinds_of_trends"),
    [
        ("leak_hook", ["growing", "growing", "flat"]),
        ("llm_oom", ["flat", "growing", "growing"]),
        ("train_empty_cache", ["flat", "flat", "flat"]),
    ],
)
def test_trends_of_recordings(name: str, kinds_of_trends: list[str]) -> None:
    snapshot = load_sample(name)
    found = steps(snapshot, 0)
    course = step_course(found, leaks(snapshot, 0, found), None)
    assert course is not None
    assert [trend.kind for trend in course.trends] == kinds_of_trends
    assert course.projection is None


def test_peaks_that_vary_are_no_leak() -> None:
    snapshot = load_sample("llm_oom")
    found = steps(snapshot, 0)
    course = step_course(found, leaks(snapshot, 0, found), None)
    assert course is not None
    assert course.varies
    assert course.ratio == pytest.approx(2.4, abs=0.01)


def test_stairs() -> None:
    values = np.repeat(np.arange(5) * 100 * MIB, 4) + 300 * MIB
    assert _trend("reserved", values).kind == "stair"


def test_a_leak_beside_honest_blocks_of_the_same_line() -> None:
    """A queue of ten and a leak, both made by one helper."""
    queue: list[int] = []

    def keep(history: History, number: int) -> None:
        queue.append(history.alloc(MIB, "helper"))
        if len(queue) > 10:
            history.free(queue.pop(0))
        history.alloc(2 * MIB, "helper")

    (row,) = judge(training(60, keep=keep)).table.itertuples()
    assert row.function == "helper"
    assert row.bytes_per_step == 2 * MIB


def test_a_history_that_is_joined_anew_at_each_step() -> None:
    """``torch.cat`` makes one larger block at each step, and frees the one before: nothing survives, all grows."""
    last: list[int] = []

    def keep(history: History, number: int) -> None:
        last.append(history.alloc((number + 1) * 4 * MIB, "history"))
        if len(last) > 1:
            history.free(last.pop(0))

    (row,) = judge(training(30, keep=keep)).table.itertuples()
    assert (row.function, row.bytes_per_step) == ("history", 4 * MIB)
