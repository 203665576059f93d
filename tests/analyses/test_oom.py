"""Why allocations failed."""

from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest

from snapana.allocator.settings import AllocatorSettings
from snapana.analyses.failure import Facts
from snapana.analyses.oom import EXPLAINED, LOOKED_AT, out_of_memory
from snapana.analyses.oom_message import explain_message
from snapana.analyses.whatif import fitting
from snapana.message import find_messages
from snapana.units import format_bytes
from tests.builders import History, model
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


# ---- what the message and the card add

GIB = 2**30


def told(name: str) -> Facts:
    return Facts(messages=tuple(find_messages(truth_of(name)["oom_message"])))


@pytest.mark.parametrize(
    ("name", "alone", "with_message"),
    [
        ("oom_train", "limit", "limit"),
        ("llm_oom", "fragmentation", "fragmentation"),
        ("frag_3.8", "fragmentation", "fragmentation"),
        ("stranded_pool", "stranded_pool", "stranded_pool"),
        ("in_pool", "limit", "limit"),
        ("other_stream", "stranded_pool", "stranded_pool"),
        ("other_process", "capacity", "other_processes"),
        ("outside_allocator", "capacity", "outside_allocator"),
        ("capacity", "capacity", "capacity"),
    ],
)
def test_verdicts_of_recordings(name: str, alone: str, with_message: str) -> None:
    snapshot, truth = load_sample(name), truth_of(name)
    (first,) = out_of_memory(snapshot, 0)
    (second,) = out_of_memory(snapshot, 0, told(name))
    assert (first.verdict, second.verdict) == (alone, with_message)
    assert second.message is not None
    # The parts that are not PyTorch's sum to what its and the driver's leave of the card.
    assert second.card is not None
    assert second.not_pytorch == second.card - second.reserved - second.device_free  # type: ignore[operator]
    assert second.outside + second.others == second.not_pytorch  # type: ignore[operator]
    for found in (first, second):
        assert found.segment == truth["observer"][1]
        assert any(change.enough for change in found.changes)


def test_a_request_of_a_pool_in_use_is_told_by_what_was_not_released() -> None:
    """While a MemPool is in use nothing is released: free segments of the default pool give the request away."""
    (found,) = out_of_memory(load_sample("in_pool"), 0, told("in_pool"))
    assert found.pool_recorded
    assert load_sample("in_pool").pools[found.pool] == (0, 1)
    assert (found.own_free, found.releasable) == (0, GIB)
    assert "empty_cache()" in found.changes[0].what
    assert found.changes[0].enough
    (beside,) = out_of_memory(load_sample("stranded_pool"), 0)
    assert not beside.pool_recorded
    assert (beside.pool, beside.pool_held) == (0, 3 * GIB // 2)
    assert any("assumed" in reason for reason in beside.reasons)


def test_a_recorded_pool_is_believed() -> None:
    history = History(limit=60 * MIB)
    history.alloc(20 * MIB, pool=(0, 1))
    history.free(history.alloc(30 * MIB))
    history.alloc(2 * MIB)
    assert history.out_of_memory(26 * MIB, device_free=0, pool=(0, 1))
    document = history.document()
    for entry in document["device_traces"][0]:
        entry["pool_id"] = (0, 1) if entry["size"] == 20 * MIB or entry["action"] == "oom" else (0, 0)
    (found,) = out_of_memory(model(document), 0)
    assert (found.own_free, found.verdict) == (0, "stranded_pool")
    assert found.other_streams == 28 * MIB


def test_the_limit_is_what_the_message_says() -> None:
    (found,) = out_of_memory(load_sample("oom_train"), 0, told("oom_train"))
    assert found.limit == truth_of("oom_train")["observer"][2]
    assert found.limit_low is None
    raised = next(change for change in found.changes if "Raise the limit" in change.what)
    assert raised.bytes == found.reserved + found.segment - found.limit


def test_a_limit_given_by_hand_counts() -> None:
    history = History(limit=40 * MIB)
    history.alloc(38 * MIB)
    assert history.out_of_memory(30 * MIB, device_free=2**40)
    (found,) = out_of_memory(history.snapshot(), 0, Facts(limit=40 * MIB))
    assert (found.verdict, found.limit) == ("limit", 40 * MIB)
    assert found.room == 2 * MIB


def test_a_limit_that_does_not_explain_it_is_no_proof_of_refusal() -> None:
    (found,) = out_of_memory(load_sample("oom_train"), 0, Facts(limit=20 * GIB))
    assert found.verdict == "limit"
    assert found.limit_low == found.reserved
    assert any("do not explain it" in reason for reason in found.reasons)


def test_in_a_container_the_own_process_is_among_the_others() -> None:
    """PyTorch does not know its number there: which process is which cannot be told."""
    history = History(limit=40 * MIB)
    history.alloc(38 * MIB)
    assert history.out_of_memory(30 * MIB, device_free=10 * MIB)
    text = (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 650.00 MiB of which "
        "10.00 MiB is free. Process 42 has 640.00 MiB memory in use. Of the allocated memory 38.00 MiB is allocated "
        "by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
    (found,) = out_of_memory(history.snapshot(), 0, Facts(messages=tuple(find_messages(text))))
    assert (found.verdict, found.others, found.outside) == ("unknown", None, None)
    assert not any("End process" in change.what for change in found.changes)


@pytest.mark.parametrize(("name", "expected"), [("llm_oom", True), ("frag_3.8", True), ("oom_train", False)])
def test_expandable_segments_are_asked_of_the_simulator(name: str, expected: bool) -> None:
    (found,) = out_of_memory(load_sample(name), 0, told(name))
    fits = fitting(load_sample(name), found)
    assert fits is not None
    assert fits("expandable_segments:True") is expected


def test_what_empty_cache_released_before_was_not_released_for_the_request() -> None:
    history = History(limit=60 * MIB)
    history.alloc(30 * MIB)
    history.free(history.alloc(20 * MIB))
    history.empty_cache()
    assert history.out_of_memory(50 * MIB)
    (found,) = out_of_memory(history.snapshot(), 0)
    assert found.released_before == 0


def test_the_driver_refused_only_where_no_limit_was_set() -> None:
    history = History(limit=40 * MIB)
    history.alloc(38 * MIB)
    assert history.out_of_memory(30 * MIB, device_free=GIB)
    text = (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 2.00 GiB of which 1.00 GiB is "
        "free. Including non-PyTorch memory, this process has 600.00 MiB memory in use. Of the allocated memory 38.00 "
        "MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )
    (found,) = out_of_memory(history.snapshot(), 0, Facts(messages=tuple(find_messages(text))))
    assert found.verdict == "driver_refused"


def test_a_message_of_another_failure_is_not_believed() -> None:
    (found,) = out_of_memory(load_sample("oom_train"), 0, told("capacity"))
    assert found.message is None
    assert found.limit is None
    assert any("another failure" in reason for reason in found.reasons)


def test_an_observers_file_without_the_event() -> None:
    """Files that skip the action are explained at their end, where the message fits."""
    from snapana.snapshot.model import Snapshot

    snapshot: Snapshot = load_sample("frag_3.8")
    events = snapshot.events.iloc[:-1]
    without = replace(snapshot, events=events)
    assert out_of_memory(without, 0) == []
    (found,) = out_of_memory(without, 0, told("frag_3.8"))
    assert found.verdict == "fragmentation"
    assert found.segment == truth_of("frag_3.8")["observer"][1]
    assert out_of_memory(without, 0, told("capacity")) == []


def test_failures_that_the_program_survived() -> None:
    found = out_of_memory(load_sample("retried"), 0)
    assert [failure.fatal for failure in found] == [False, False]
    assert len(found) == truth_of("retried")["ooms"]


def test_the_fewest_bytes_that_open_a_hole() -> None:
    history = History(limit=64 * MIB)
    history.free(history.alloc(60 * MIB))
    blocks = [history.alloc(size, site) for size, site in ((20 * MIB, "a"), (2 * MIB, "b"), (20 * MIB, "c"))]
    history.alloc(10 * MIB, "d")
    for addr in (blocks[0], blocks[2]):
        history.free(addr)
    assert history.out_of_memory(30 * MIB, device_free=0)
    (found,) = out_of_memory(history.snapshot(), 0)
    assert (found.verdict, found.own_free, found.largest_hole) == ("fragmentation", 48 * MIB, 20 * MIB)
    (window,) = [change for change in found.changes if change.what.startswith("Free ")]
    assert (window.bytes, window.enough) == (2 * MIB, True)
    assert " b between holes: a hole of 42.00 MiB" in window.what
    history.free(blocks[1])
    assert not history.out_of_memory(30 * MIB)


def test_advice_is_possible() -> None:
    """Never what is set already, never expandable segments beside MemPools."""
    for name in ("stranded_pool", "in_pool"):
        (found,) = out_of_memory(load_sample(name), 0)
        assert not any("expandable" in change.what for change in found.changes)
    history = History(AllocatorSettings(conf="expandable_segments:True", expandable_segments=True), limit=60 * MIB)
    kept = [history.alloc(10 * MIB, "x") for _ in range(6)]
    for addr in kept[::2]:
        history.free(addr)
    assert history.out_of_memory(25 * MIB, device_free=0)
    (found,) = out_of_memory(history.snapshot(), 0)
    assert found.verdict == "fragmentation"
    assert not any("expandable_segments:True" in change.what for change in found.changes)


def test_very_many_failures_are_bounded() -> None:
    snapshot = load_sample("retried")
    many = pd.concat([snapshot.events, *[snapshot.events[snapshot.events["action"] == "oom"]] * 200])
    many = many.reset_index(drop=True)
    many["index"] = range(len(many))
    found = out_of_memory(replace(snapshot, events=many), 0)
    assert len(found) == LOOKED_AT
    assert sum(failure.cache is not None for failure in found) == EXPLAINED


# ---- the message alone


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("oom_train", "limit"),
        ("llm_oom", "unknown"),
        ("stranded_pool", "stranded_pool"),
        ("other_process", "other_processes"),
        ("outside_allocator", "outside_allocator"),
        ("capacity", "capacity"),
    ],
)
def test_what_a_message_says_by_itself(name: str, verdict: str) -> None:
    found = explain_message(told(name).messages[0])
    assert found.verdict == verdict
    fragmentation_ruled_out = any("this is not fragmentation" in reason for reason in found.reasons)
    assert fragmentation_ruled_out == (name != "llm_oom")
