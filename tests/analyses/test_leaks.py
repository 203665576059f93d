"""Growth is found, and nothing else is called so."""

from __future__ import annotations

import pytest

from snapana.analyses.leaks import Leaks, leaks, robust_slope
from snapana.analyses.steps import steps
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
    import numpy as np

    values = np.arange(0, 100, 5, dtype=np.int64)
    values[7] = 10_000
    assert robust_slope(values) == 5
    assert robust_slope(np.arange(3000, dtype=np.int64) * 2) == 2
