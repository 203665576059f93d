"""What would make a failed request fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from snapana.allocator.layout import FREE, Layout
from snapana.analyses.failure import Change, OutOfMemory
from snapana.analyses.oom_reasons import count_blocks
from snapana.analyses.sites import by_site
from snapana.analyses.whatif import fitting
from snapana.frames import rows
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes


def may_expand(snapshot: Snapshot) -> bool:
    """Say whether expandable segments can be advised: not on yet, and no MemPool that may forbid them."""
    on = snapshot.settings.expandable_segments or bool(snapshot.segments["expandable"].any())
    return not on and not any(second != 0 for _, second in snapshot.pools)


def changes(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    """List changes, the simplest that is enough first; at least one line for each verdict."""
    by_verdict = {
        "fragmentation": _join_holes,
        "stranded_pool": _release_stranded,
        "limit": _raise_limit,
        "other_processes": _end_others,
        "outside_allocator": _shrink_outside,
        "driver_refused": _calm_driver,
    }
    found = by_verdict[failure.verdict](snapshot, failure, layout) if failure.verdict in by_verdict else []
    return [*_release_cache(failure), *found, *_hold_less(snapshot, failure), *_ask_less(failure)]


def _release_cache(failure: OutOfMemory) -> list[Change]:
    if not failure.releasable:
        return []
    return [
        Change(
            "Call torch.cuda.empty_cache() before the capture or the MemPool begins",
            failure.releasable,
            failure.releasable + (failure.room or 0) >= failure.segment,
        )
    ]


def _join_holes(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    found = []
    if may_expand(snapshot):
        fits = fitting(snapshot, failure)
        expanded = None if fits is None else fits("expandable_segments:True")
        judged = {
            True: ", and the recorded requests would have fitted",
            False: "; the recorded requests would still not all have fitted",
            None: "",
        }[expanded]
        found.append(
            Change(
                "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: its free pages join, wherever they lie" + judged,
                failure.own_free,
                bool(expanded),
            )
        )
        found += [] if fits is None else _split_limit(failure, fits)
    window = _cheapest_window(snapshot, failure, layout)
    if window is not None:
        found.append(window)
    return found


def _split_limit(failure: OutOfMemory, fits: Callable[[str], bool]) -> list[Change]:
    """Name ``max_split_size_mb`` only where the model says that it would have helped."""
    for size in (512, 128):
        if fits(f"max_split_size_mb:{size}"):
            what = f"Set PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:{size}: the recorded requests would have fitted"
            return [Change(what, failure.own_free, True)]
    return []


def _cheapest_window(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> Change | None:
    """Find the fewest bytes of blocks that, freed, open a hole for the request within one segment."""
    own = layout.owned(small=failure.small, stream=failure.stream, pool=failure.pool)
    ranges = layout.ranges[own[layout.ranges["segment"].to_numpy()]]
    if not len(ranges):
        return None
    start = (ranges["address"].to_numpy() - ranges["address"].to_numpy()[0]).astype(np.int64)
    end = start + ranges["size"].to_numpy()
    segment, live = ranges["segment"].to_numpy(), ranges["state"].to_numpy() != FREE
    last = np.searchsorted(end, start + failure.requested, side="left")
    fits = last < len(end)
    fits[fits] = segment[last[fits]] == segment[fits]
    if not fits.any():
        return None
    first = np.flatnonzero(fits)
    used = np.concatenate([[0], np.cumsum(np.where(live, ranges["size"].to_numpy(), 0))])
    cost = used[last[first] + 1] - used[first]
    best = int(cost.argmin())
    if int(cost[best]) > failure.requested // 2:
        # No news: whoever frees as much as is asked for can have it.
        return None
    low, high = int(first[best]), int(last[first[best]])
    chosen = ranges.iloc[low : high + 1]
    lives = chosen["life"].to_numpy()[chosen["state"].to_numpy() != FREE]
    sites = by_site(snapshot, snapshot.replay[failure.device].allocations.iloc[lives])
    names = ", ".join(sites["site"].head(3)) + (" and others" if len(sites) > 3 else "")
    return Change(
        f"Free {count_blocks(len(lives))} of {names} between holes: a hole of "
        f"{format_bytes(int(end[high] - start[low]))} opens",
        int(cost[best]),
        True,
    )


def _release_stranded(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    found = []
    held = layout.segments["pool"].to_numpy()[layout.whole_free]
    names = ", ".join(str(snapshot.pools[pool]) for pool in np.unique(held[held != 0]) if pool != failure.pool)
    if failure.pool_held and names:
        found.append(
            Change(
                f"Let go of the private pool {names} (delete its graph or MemPool), or allocate from it",
                failure.pool_held,
                failure.pool_held + (failure.room or 0) >= failure.segment,
            )
        )
    if failure.other_streams:
        found.append(
            Change(
                "Allocate in one stream and pool, or free what keeps the segments of the others (see the pins)",
                failure.other_streams,
                failure.other_streams >= failure.segment,
            )
        )
    return found


def _raise_limit(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    needed = failure.reserved + failure.segment
    free = failure.device_free
    by = None if failure.limit is None else needed - failure.limit
    return [
        Change(
            f"Raise the limit (torch.cuda.set_per_process_memory_fraction) to {format_bytes(needed)} or more",
            by,
            free is not None and free >= failure.segment,
        )
    ]


def _end_others(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    others = failure.message.others if failure.message is not None else ()
    largest = sorted(others, key=lambda other: -other[1])
    return [
        Change(f"End process {number}, or run where it does not", size, (failure.room or 0) + size >= failure.segment)
        for number, size in largest[:3]
    ]


def _shrink_outside(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    return [
        Change(
            "Shrink what this process holds outside PyTorch: communicators, other frameworks, direct allocations",
            failure.outside,
            True,
        )
    ]


def _calm_driver(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    return [Change("Run again with nothing else on the card: the driver's own memory was in pieces", None, False)]


def _hold_less(snapshot: Snapshot, failure: OutOfMemory) -> list[Change]:
    """Name the largest holders that together make up what is missing."""
    if failure.room is None or failure.verdict in {"fragmentation", "stranded_pool", "driver_refused"}:
        return []
    if failure.limit is None and failure.limit_high is not None:
        short: int = failure.segment
    else:
        short = failure.segment - failure.room
    named, total = [], 0
    for row in rows(failure.live.sites[failure.live.sites["kind"] != "none"].head(5)):
        if total >= short:
            break
        named.append(f"{row.site} {format_bytes(int(row.bytes))}")
        total += int(row.bytes)
    if not named or short <= 0:
        return []
    return [
        Change(
            f"Hold {'up to ' if failure.limit_high is not None else ''}{format_bytes(short)} less when it is asked "
            f"for; most is held by {', '.join(named)}",
            short,
            True,
        )
    ]


def _ask_less(failure: OutOfMemory) -> list[Change]:
    most = max(failure.largest_hole, failure.room or 0)
    if failure.room is None or not 0 < most < failure.requested or most < failure.requested // 8:
        return []
    return [
        Change(
            f"Ask for at most {format_bytes(most)} at a time: a micro-batch of {most / failure.requested:.0%} of it",
            failure.requested - most,
            True,
        )
    ]
