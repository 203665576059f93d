"""The simulated allocator against real recordings and its own rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings

from snapana.allocator.settings import AllocatorSettings
from snapana.allocator.simulate import SimulatedEvent, SimulatedOutOfMemoryError, Simulator
from tests.builders import History, histories
from tests.conftest import load_sample

MIB = 2**20
thorough = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def placements(events: pd.DataFrame, *actions: str) -> Iterator[int]:
    return iter(events["addr"][events["action"].isin(actions)].tolist())


@pytest.mark.parametrize("name", ["frag_basic", "train_adam", "leak_hook", "expandable", "round_list", "streams"])
def test_recordings_are_reproduced_address_by_address(name: str) -> None:
    """Given the driver's placement of segments, each block lands where it did."""
    snapshot = load_sample(name)
    events = snapshot.replay[0].events
    new, maps = placements(events, "segment_alloc"), placements(events, "segment_map")
    simulator = Simulator(snapshot.settings, place=lambda size: next(new), reserve=lambda size: next(maps))
    compared = 0
    for row in events.itertuples():
        if row.action == "alloc":
            assert simulator.malloc(row.size, row.stream) == row.addr
            compared += 1
        elif row.action == "free_requested":
            simulator.free_requested(row.addr)
        elif row.action == "free_completed":
            simulator.free_completed(row.addr)
    final = [(block.addr, block.size) for run in simulator.segments() for block in run]
    assert sorted(final) == sorted(zip(snapshot.blocks["address"], snapshot.blocks["size"], strict=True))
    assert compared > 70


@thorough
@given(histories())
def test_layout_is_sound(history: History) -> None:
    sim = history.sim
    total = 0
    for run in sim.segments():
        for block, following in itertools.pairwise(run):
            assert block.addr + block.size == following.addr
            assert not (block.is_free and following.is_free)
        total += sum(block.size for block in run)
    assert total == sim.reserved
    assert 0 <= sim.allocated <= sim.active <= sim.reserved
    assert sum(block.size for block in sim.live.values()) == sim.active
    assert sum(block.requested for block in sim.live.values()) == sim.requested


@thorough
@given(histories())
def test_everything_freed_and_released_leaves_nothing(history: History) -> None:
    sim = history.sim
    for addr, block in list(sim.live.items()):
        if block.allocated:
            sim.free_requested(addr)
        sim.free_completed(addr)
    sim.empty_cache()
    private = sum(block.size for run in sim.segments() for block in run if block.pool.id != (0, 0))
    assert (sim.allocated, sim.active, sim.requested) == (0, 0, 0)
    assert sim.reserved == private


def test_best_fit_takes_the_smallest_then_the_lowest() -> None:
    sim = Simulator()
    blocks = [sim.malloc(size) for size in (30 * MIB, 1000, 12 * MIB, 12 * MIB)]
    for addr in (blocks[0], blocks[3], blocks[2]):
        sim.free(addr)
    assert sim.malloc(11 * MIB) == min(blocks[2], blocks[3])


def test_streams_and_pools_do_not_share() -> None:
    sim = Simulator()
    first = sim.malloc(5 * MIB)
    sim.free(first)
    reserved = sim.reserved
    assert sim.malloc(5 * MIB, stream=3) != first
    assert sim.malloc(5 * MIB, pool=(1, 0)) != first
    assert sim.reserved == 3 * reserved
    assert sim.malloc(5 * MIB) == first


def test_cache_is_released_before_giving_up() -> None:
    events: list[SimulatedEvent] = []
    sim = Simulator(limit=64 * MIB, record=events.append)
    sim.free(sim.malloc(40 * MIB))
    sim.malloc(60 * MIB)
    assert sim.retries == 1
    assert [event.action for event in events][-3:] == ["segment_free", "segment_alloc", "alloc"]
    with pytest.raises(SimulatedOutOfMemoryError):
        sim.malloc(20 * MIB)
    assert events[-1].action == "oom"


@pytest.mark.parametrize(("expandable", "fits"), [(False, False), (True, True)])
def test_expandable_segments_leave_no_holes_between_segments(expandable: bool, fits: bool) -> None:
    """Four segments of 24 MiB, each half kept: 44 MiB are free, but ordinary ones have no 20 MiB in one piece."""
    sim = Simulator(AllocatorSettings(expandable_segments=expandable), limit=104 * MIB)
    for addr in [sim.malloc(24 * MIB) for _ in range(4)]:
        sim.free(addr)
    for _ in range(4):
        sim.malloc(13 * MIB)
    if fits:
        sim.malloc(20 * MIB)
        assert sim.reserved <= 104 * MIB
    else:
        with pytest.raises(SimulatedOutOfMemoryError):
            sim.malloc(20 * MIB)


def test_old_segments_are_collected_above_the_threshold() -> None:
    events: list[SimulatedEvent] = []
    settings = AllocatorSettings(garbage_collection_threshold=0.5)
    sim = Simulator(settings, limit=100 * MIB, record=events.append)
    sim.free(sim.malloc(60 * MIB))
    sim.malloc(70 * MIB)
    assert [event.action for event in events].count("segment_free") == 1
    assert sim.retries == 0


def test_empty_requests_never_reach_the_allocator() -> None:
    with pytest.raises(ValueError, match="empty"):
        Simulator().malloc(0)
