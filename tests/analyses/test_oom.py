"""Why allocations failed."""

from __future__ import annotations

import re

import pytest

from snapana.analyses.oom import out_of_memory
from snapana.units import format_bytes
from tests.builders import History
from tests.conftest import load_sample, truth_of

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "verdict"), [("oom_train", "limit"), ("llm_oom", "fragmentation"), ("frag_3.8", "fragmentation")]
)
def test_figures_are_those_of_pytorchs_message(name: str, verdict: str) -> None:
    (found,) = out_of_memory(load_sample(name), 0)
    message = truth_of(name)["oom_message"]
    _, asked, limit, free = truth_of(name)["observer"]
    assert found.verdict == verdict
    assert found.segment == asked
    assert found.device_free == free
    assert f"Tried to allocate {format_bytes(found.segment)}" in message
    assert f"{format_bytes(found.allocated)} is allocated by PyTorch" in message
    unallocated = format_bytes(found.reserved - found.allocated)
    assert f"{unallocated} is reserved by PyTorch but unallocated" in message
    if verdict == "limit":
        assert found.limit_low is not None
        assert found.limit_high is not None
        assert found.limit_low <= limit < found.limit_high


def test_holes_of_a_fragmented_card() -> None:
    (found,) = out_of_memory(load_sample("frag_3.8"), 0)
    assert found.requested == 64_456_192
    assert found.largest_hole == 64_025_600
    assert found.own_free > found.requested > found.largest_hole
    assert any("contiguous, it would have fitted" in reason for reason in found.reasons)


def test_a_shortage_is_never_called_fragmentation() -> None:
    (found,) = out_of_memory(load_sample("oom_train"), 0)
    assert found.own_free < found.requested
    assert any("could not have held it anyway" in reason for reason in found.reasons)


def test_the_backward_node_is_named() -> None:
    (found,) = out_of_memory(load_sample("llm_oom"), 0)
    assert found.site.function == "LogSoftmaxBackward0"
    assert any("LogSoftmaxBackward0" in reason for reason in found.reasons)
    assert not re.search(r"\.py", found.site.label)


@pytest.mark.parametrize(("device_free", "verdict"), [(0, "capacity"), (10 * MIB, "capacity"), (2**40, "limit")])
def test_live_tensors_fill_the_card(device_free: int, verdict: str) -> None:
    history = History(limit=40 * MIB)
    history.alloc(38 * MIB)
    assert history.out_of_memory(30 * MIB, device_free=device_free)
    (found,) = out_of_memory(history.snapshot(), 0)
    assert found.verdict == verdict
    assert found.allocated == 38 * MIB


def test_memory_of_other_streams_and_pools_is_stranded() -> None:
    history = History(limit=60 * MIB)
    history.free(history.alloc(50 * MIB, pool=(0, 1)))
    assert history.out_of_memory(30 * MIB)
    (found,) = out_of_memory(history.snapshot(), 0)
    assert found.verdict == "stranded_pool"
    assert found.pool_held == 50 * MIB


def test_without_the_drivers_figure_the_cause_is_unknown() -> None:
    history = History(limit=40 * MIB)
    history.alloc(38 * MIB)
    assert history.out_of_memory(30 * MIB)
    document = history.document()
    del document["device_traces"][0][-1]["device_free"]
    from tests.builders import model

    (found,) = out_of_memory(model(document), 0)
    assert found.verdict == "unknown"
    assert found.device_free is None


def test_what_pytorch_released_before_is_counted() -> None:
    history = History(limit=60 * MIB)
    history.alloc(30 * MIB)
    history.free(history.alloc(20 * MIB))
    assert history.out_of_memory(50 * MIB)
    (found,) = out_of_memory(history.snapshot(), 0)
    assert found.released_before == 20 * MIB


def test_runs_that_do_not_fail_have_none() -> None:
    assert out_of_memory(load_sample("train_adam"), 0) == []
