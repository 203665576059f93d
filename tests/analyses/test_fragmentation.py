"""What is cached, what can be released, and who keeps the rest."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapana.allocator.settings import AllocatorSettings
from snapana.analyses.fragmentation import SEVERAL_SITES, course, fragmentation
from snapana.analyses.pins import pin_age
from snapana.analyses.steps import steps
from tests.builders import History, histories
from tests.conftest import load_sample

MIB = 2**20


def test_a_small_block_keeps_its_whole_segment() -> None:
    history = History()
    big = history.alloc(30 * MIB, "work")
    history.free(big)
    history.alloc(2 * MIB, "metrics")
    found = fragmentation(history.snapshot(), 0, len(history.events) - 1)
    assert (found.cached, found.unreleasable, found.releasable) == (28 * MIB, 28 * MIB, 0)
    assert found.pins[["pinned", "block_bytes", "segments", "blocks"]].to_numpy().tolist() == [
        [28 * MIB, 2 * MIB, 1, 1]
    ]
    assert found.pins["site"].str.endswith(" metrics").all()
    row = found.pools.iloc[0]
    assert (int(row["free"]), int(row["largest_hole"]), int(row["holes"]), row["external"]) == (
        28 * MIB,
        28 * MIB,
        1,
        0,
    )


def test_segments_kept_by_several_sites_are_one_row() -> None:
    history = History()
    history.free(history.alloc(30 * MIB))
    history.alloc(2 * MIB, "one")
    history.alloc(2 * MIB, "two")
    pins = fragmentation(history.snapshot(), 0, len(history.events) - 1).pins
    assert pins["site"].tolist() == [SEVERAL_SITES]
    assert pins["pinned"].tolist() == [26 * MIB]
    assert pins["block_bytes"].tolist() == [4 * MIB]


def test_expandable_segments_are_counted_by_page() -> None:
    history = History(AllocatorSettings(expandable_segments=True))
    blocks = [history.alloc(20 * MIB) for _ in range(4)]
    for addr in blocks[:3]:
        history.free(addr)
    history.alloc(2 * MIB, "metrics")
    found = fragmentation(history.snapshot(), 0, len(history.events) - 1)
    # The first page holds the small block, the last one the survivor; the two between are whole.
    assert found.cached == 58 * MIB
    assert found.releasable == 40 * MIB
    assert found.unreleasable == 18 * MIB
    assert found.pins["segments"].tolist() == [1]


def test_a_pending_block_pins_nothing() -> None:
    history = History()
    addr = history.alloc(5 * MIB)
    history.free_later(addr)
    found = fragmentation(history.snapshot(), 0, len(history.events) - 1)
    assert (found.cached, found.releasable, found.unreleasable) == (15 * MIB, 15 * MIB, 0)


def test_free_memory_of_a_private_pool_is_held() -> None:
    history = History()
    history.free(history.alloc(5 * MIB, pool=(1, 0)))
    history.alloc(MIB)
    found = fragmentation(history.snapshot(), 0, len(history.events) - 1)
    assert (found.pool_held, found.releasable) == (20 * MIB, 0)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.data())
def test_parts_sum_to_their_totals(history: History, data: st.DataObject) -> None:
    if not history.events:
        return
    snapshot = history.snapshot()
    found = fragmentation(snapshot, 0, data.draw(st.integers(-1, len(history.events) - 1)))
    assert found.releasable + found.unreleasable + found.pool_held == found.cached == found.reserved - found.active
    assert min(found.releasable, found.unreleasable, found.pool_held) >= 0
    assert int(found.pins["pinned"].sum()) == found.unreleasable == int(found.worst["pinned"].sum())
    assert int(found.pools["free"].sum()) == found.cached
    assert int(found.pools["reserved"].sum()) == found.reserved
    assert int(found.pools["unreleasable"].sum()) == found.unreleasable


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_releasable_is_what_empty_cache_releases(history: History) -> None:
    """No other judge is needed: the allocator itself gives exactly this back."""
    if not history.events:
        return
    # empty_cache() waits for other streams first.
    for addr in [addr for addr, block in history.sim.live.items() if block.pending]:
        history.complete(addr)
    found = fragmentation(history.snapshot(), 0, len(history.events) - 1)
    before = history.sim.reserved
    history.empty_cache()
    assert before - history.sim.reserved == found.releasable


@pytest.mark.parametrize(
    ("name", "cached", "unreleasable"),
    [
        ("frag_3.8", 820_909_568, 820_909_568),
        ("oom_train", 465_697_280, 465_697_280),
        ("train_truncated", 647_528_448, 93_880_320),
        ("no_history", 1_407_059_456, 155_059_712),
    ],
)
def test_final_states_of_recordings(name: str, cached: int, unreleasable: int) -> None:
    snapshot = load_sample(name)
    found = fragmentation(snapshot, 0, len(snapshot.events) - 1)
    assert (found.cached, found.unreleasable) == (cached, unreleasable)


def test_by_default_the_instant_is_where_most_is_reserved() -> None:
    snapshot = load_sample("oom_train")
    found = fragmentation(snapshot, 0)
    assert found.at == "peak_reserved"
    assert found.reserved == int(snapshot.replay[0].curves["reserved"].max())


# ---- holes, ages, pairs, course


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.data())
def test_holes_and_blocks_tile_each_segment(history: History, data: st.DataObject) -> None:
    if not history.events:
        return
    snapshot = history.snapshot()
    event = data.draw(st.integers(-1, len(history.events) - 1))
    layout = snapshot.replay[0].layout(event)
    for number, own in layout.ranges.groupby("segment"):
        segment = layout.segments.loc[number]
        ends = own["address"].to_numpy() + own["size"].to_numpy().astype("uint64")
        assert int(own["address"].iloc[0]) == int(segment["address"])
        assert int(ends[-1]) == int(segment["address"]) + int(segment["size"])
        assert (own["address"].to_numpy()[1:] == ends[:-1]).all()
    assert set(layout.ranges["segment"]) == set(layout.segments.index)
    found = fragmentation(snapshot, 0, event)
    assert int(found.holes["bytes"].sum()) == found.cached
    assert int(found.holes["holes"].sum()) == len(layout.holes)
    assert int(found.pending["bytes"].sum()) == found.active - found.allocated


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.data())
def test_freeing_the_pins_of_a_segment_makes_it_releasable(history: History, data: st.DataObject) -> None:
    """What a pin is said to keep is what the allocator gives back once its blocks are gone."""
    for addr in [addr for addr, block in history.sim.live.items() if block.pending]:
        history.complete(addr)
    history.empty_cache()
    if not history.events:
        return
    before = fragmentation(history.snapshot(), 0, len(history.events) - 1)
    worst = before.worst
    default = [
        row
        for row in worst.itertuples()
        if any(
            run[0].addr <= row.address < run[-1].addr + run[-1].size and run[0].pool.id == (0, 0)
            for run in history.sim.segments()
        )
    ]
    if not default:
        return
    row = data.draw(st.sampled_from(default))
    low, high = int(row.address), int(row.address) + int(row.size)
    for addr, block in list(history.sim.live.items()):
        if addr < high and addr + block.size > low:
            history.free(addr)
    after = fragmentation(history.snapshot(), 0, len(history.events) - 1)
    assert after.releasable >= before.releasable + int(row.pinned)


def test_pins_know_their_age() -> None:
    history = History()
    big = history.alloc(30 * MIB, "work")
    history.free(big)
    born = len(history.events)
    history.alloc(2 * MIB, "metrics")
    for _ in range(5):
        history.free(history.alloc(1000, "step"))
        history.step()
    snapshot = history.snapshot()
    found = fragmentation(snapshot, 0, len(history.events) - 1)
    (pin,) = found.pins[found.pins["site"].str.endswith(" metrics")].itertuples()
    assert pin.born == born
    age = pin_age(snapshot, 0, steps(snapshot, 0), found, pin.born)
    assert (age.events, age.steps) == (found.event - born, 5)
    assert age.us == snapshot.replay[0].time_us(found.event) - snapshot.replay[0].time_us(born)
    assert pin_age(snapshot, 0, steps(snapshot, 0), found, -1).events is None


def test_two_sites_that_keep_a_segment_together_are_a_pair() -> None:
    history = History()
    history.free(history.alloc(30 * MIB))
    history.alloc(2 * MIB, "one")
    history.alloc(2 * MIB, "two")
    (pair,) = fragmentation(history.snapshot(), 0, len(history.events) - 1).pairs.itertuples()
    assert {pair.first.split()[-1], pair.second.split()[-1]} == {"one", "two"}
    assert (pair.pinned, pair.segments) == (26 * MIB, 1)


def test_the_course_goes_through_the_extremes() -> None:
    snapshot = load_sample("frag_3.8")
    table, curves = course(snapshot, 0), snapshot.replay[0].curves
    assert table["event"].is_monotonic_increasing
    assert table["reserved"].max() == curves["reserved"].max()
    assert table["active"].max() == curves["active"].max()
    last = table.iloc[-1]
    assert (int(last["free"]), int(last["unreleasable"])) == (820_909_568, 820_909_568)
    assert int(last["largest_hole"]) == 64_025_600
    assert course(load_sample("no_history"), 0)["event"].tolist() == [-1]


def test_the_worst_pins_of_a_fragmented_card() -> None:
    """Worked by hand from the recording."""
    snapshot = load_sample("frag_3.8")
    worst = fragmentation(snapshot, 0, len(snapshot.events) - 1).worst.head(3)
    assert worst["size"].tolist() == [100_663_296] * 3
    assert worst["pinned"].tolist() == [74_057_216, 65_592_832, 51_761_152]
    assert worst["blocks"].tolist() == [1, 1, 2]
