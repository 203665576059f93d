"""Every allocation that failed: what was asked, what was there, why it did not fit, and what would make it fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.layout import ALLOCATED, FREE, Layout
from snapana.allocator.rounding import SMALL_SIZE, segment_size
from snapana.analyses.fragmentation import Fragmentation, fragmentation
from snapana.analyses.peak import Peak, instant
from snapana.analyses.sites import by_site
from snapana.frames import rows
from snapana.message import OomMessage, tolerance
from snapana.snapshot.model import ACTION_CODE, Snapshot
from snapana.snapshot.stacks import Site
from snapana.units import format_bytes, format_count

# A loop that catches failures can have thousands: the last of them are explained in full.
EXPLAINED = 20

VERDICTS = (
    "fragmentation",
    "stranded_pool",
    "limit",
    "driver_refused",
    "other_processes",
    "outside_allocator",
    "capacity",
    "unknown",
)


@dataclass(frozen=True)
class Facts:
    """What is known besides the snapshot.

    Attributes:
        limit: the most that PyTorch may reserve, in bytes.
        card: the card's size in bytes.
        messages: out-of-memory messages of the run.

    """

    limit: int | None = None
    card: int | None = None
    messages: tuple[OomMessage, ...] = ()


@dataclass(frozen=True)
class Change:
    """One thing to change.

    Attributes:
        what: a sentence.
        bytes: what it brings, or by how much it has to be changed; None where bytes do not measure it.
        enough: whether it alone makes the request fit.

    """

    what: str
    bytes: int | None
    enough: bool


@dataclass(frozen=True)
class OutOfMemory:
    """One failed allocation.

    Attributes:
        device: ordinal.
        event: index in the device's trace.
        time_us: microseconds since the epoch, None if not recorded.
        requested: bytes asked for, rounded by the allocator.
        segment: bytes that the allocator asked the driver for.
        site: who asked.
        stack: its stack id, -1 if none.
        small: whether the request belongs to the small pool.
        stream: the request's stream.
        pool: the request's pool, as index; what is most likely where it was not recorded.
        pool_recorded: whether it was, or there is only one.
        fatal: nothing was allocated on the device after it.
        allocated: bytes allocated at that moment.
        active: bytes active.
        reserved: bytes reserved.
        own_free: free bytes in the pool, stream and size class of the request.
        largest_hole: the largest contiguous one of them.
        pool_held: free bytes in wholly free segments of private pools that the request may not use.
        other_streams: other free bytes that the request may not use and that blocks keep: of other streams or pools.
        releasable: free bytes that ``empty_cache()`` would have released.
        device_free: bytes that the driver had free, None if not recorded.
        released_before: bytes that PyTorch gave back to the driver for this request.
        limit: the most that PyTorch may reserve, None if not known.
        limit_low: PyTorch may reserve at least this much, where a limit is inferred.
        limit_high: and less than this.
        card: the card's size, None if not known.
        others: bytes of other processes, None if not known.
        outside: bytes of this process outside of PyTorch's allocator, None if not known.
        not_pytorch: both together, None if not known.
        message: PyTorch's message of this failure, where one was given.
        verdict: one of ``VERDICTS``.
        reasons: sentences that argue for it, with their figures.
        changes: what would make the request fit, the simplest first; empty for old failures of many.
        live: what was allocated, by site.
        cache: fragmentation at that moment; None for old failures of many.

    """

    device: int
    event: int
    time_us: int | None
    requested: int
    segment: int
    site: Site
    stack: int
    small: bool
    stream: int
    pool: int
    pool_recorded: bool
    fatal: bool
    allocated: int
    active: int
    reserved: int
    own_free: int
    largest_hole: int
    pool_held: int
    other_streams: int
    releasable: int
    device_free: int | None
    released_before: int
    limit: int | None
    limit_low: int | None
    limit_high: int | None
    card: int | None
    others: int | None
    outside: int | None
    not_pytorch: int | None
    message: OomMessage | None
    verdict: str
    live: Peak
    reasons: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    cache: Fragmentation | None = None

    @property
    def room(self) -> int | None:
        """Bytes of the largest segment that could have been had; None if not known."""
        if self.device_free is None:
            return None
        limit = self.limit if self.limit is not None else self.limit_high
        return self.device_free if limit is None else max(0, min(self.device_free, limit - self.reserved))


@dataclass(frozen=True)
class _Request:
    """What was asked for, when, and by whom."""

    event: int
    size: int
    stream: int
    pool: int
    stack: int
    device_free: int | None
    fatal: bool


def out_of_memory(snapshot: Snapshot, device: int, facts: Facts | None = None) -> list[OutOfMemory]:
    """Explain every ``oom`` event of the window, in order.

    A file without one, such as an observer's that skips the action, is explained at its end where a message is given
    whose figures are those of the final state.
    """
    facts = facts or Facts()
    found = _requests(snapshot, device) or _request_of_message(snapshot, device, facts)
    return [
        _explain(snapshot, device, request, facts, full=number >= len(found) - EXPLAINED)
        for number, request in enumerate(found)
    ]


def _requests(snapshot: Snapshot, device: int) -> list[_Request]:
    events = snapshot.replay[device].events
    action = events["action"].cat.codes.to_numpy()
    failed = np.flatnonzero(action == ACTION_CODE["oom"])
    later = np.flatnonzero((action == ACTION_CODE["alloc"]) | (action == ACTION_CODE["oom"]))
    last = int(later[-1]) if len(later) else -1
    return [
        _Request(
            event=event,
            size=int(row.size),
            stream=int(row.stream),
            pool=int(row.pool),
            stack=int(row.stack),
            device_free=int(row.device_free) if int(row.device_free) >= 0 else None,
            fatal=event >= last,
        )
        for event, row in zip(
            failed.tolist(), rows(events[["size", "stream", "pool", "stack", "device_free"]].iloc[failed]), strict=True
        )
    ]


def _request_of_message(snapshot: Snapshot, device: int, facts: Facts) -> list[_Request]:
    replay = snapshot.replay[device]
    last = len(replay.events) - 1
    state = replay.curves.iloc[-1]
    message = _matching(facts.messages, device, None, int(state["allocated"]), int(state["reserved"]))
    if message is None or message.reserved is None:
        return []
    return [_Request(last, message.requested, 0, -1, -1, message.free, fatal=True)]


def _explain(snapshot: Snapshot, device: int, request: _Request, facts: Facts, *, full: bool) -> OutOfMemory:
    small = request.size <= SMALL_SIZE
    segment = segment_size(request.size, snapshot.settings.large_segment_size)
    replay = snapshot.replay[device]
    layout = replay.layout(request.event)
    pool, recorded = _pool_of_request(replay.allocations, layout, request.event, request.pool)
    room = _room(layout, small=small, stream=request.stream, pool=pool)
    live = instant(snapshot, device, request.event)
    message = _matching(facts.messages, device, segment, live.allocated, live.reserved)
    free = request.device_free
    free = free if free is not None or message is None else message.free
    card = _card(facts, free, live.reserved)
    limit = facts.limit if facts.limit is not None else message.allowed if message is not None else None
    limited = free is not None and free >= segment
    known = limit is not None or (message is not None and message.capacity is not None)
    failure = OutOfMemory(
        device=device,
        event=request.event,
        time_us=replay.time_us(request.event),
        requested=request.size,
        segment=segment,
        site=snapshot.stacks.site(request.stack),
        stack=request.stack,
        small=small,
        stream=request.stream,
        pool=pool,
        pool_recorded=recorded,
        fatal=request.fatal,
        allocated=live.allocated,
        active=live.active,
        reserved=live.reserved,
        own_free=room.own_free,
        largest_hole=room.largest_hole,
        pool_held=room.pool_held,
        other_streams=room.other_streams,
        releasable=room.releasable,
        device_free=free,
        released_before=_released_before(replay.events, request.event),
        limit=limit,
        limit_low=live.reserved if limited and not known else None,
        limit_high=live.reserved + segment if limited and not known else None,
        card=card,
        others=message.others_total if message is not None else None,
        outside=message.outside if message is not None else None,
        not_pytorch=None if card is None or free is None else max(0, card - free - live.reserved),
        message=message,
        verdict="unknown",
        live=live,
        cache=fragmentation(snapshot, device, request.event, "oom") if full else None,
    )
    failure = replace(failure, verdict=_verdict(failure, limit_known=known))
    failure = replace(failure, reasons=tuple(_reasons(snapshot, failure, layout, facts)))
    return replace(failure, changes=tuple(_changes(snapshot, failure, layout))) if full else failure


# ---- what is known


def _matching(
    messages: tuple[OomMessage, ...], device: int, segment: int | None, allocated: int, reserved: int
) -> OomMessage | None:
    """Give the last message whose figures are those of the failure, as printed."""

    def near(printed: int | None, exact: int | None) -> bool:
        # The sums of two printed figures are off by twice as much.
        return printed is None or exact is None or abs(printed - exact) <= 2 * tolerance(max(printed, exact))

    fitting = [
        message
        for message in messages
        if message.device in {None, device}
        and near(message.requested, segment)
        and near(message.allocated, allocated)
        and near(message.reserved, reserved)
    ]
    return fitting[-1] if fitting else None


def _card(facts: Facts, free: int | None, reserved: int) -> int | None:
    """Give the card's size: as told, else as any message prints it, which may be a little short."""
    if facts.card is not None:
        return facts.card
    printed = next((message.capacity for message in reversed(facts.messages) if message.capacity is not None), None)
    return printed if printed is None else max(printed, reserved + (free or 0))


def _pool_of_request(allocations: pd.DataFrame, layout: Layout, event: int, recorded: int) -> tuple[int, bool]:
    """Tell the request's pool, and whether that is certain.

    Before 2.12 events name no pool. While a MemPool or a capture is in use PyTorch releases nothing
    (``malloc``: ``captures_underway``), so a wholly free segment of the default pool that survived says that the
    request came from a private one: the one that allocated last.
    """
    if recorded >= 0:
        return recorded, True
    private = layout.segments["pool"].to_numpy() != 0
    if not private.any():
        return 0, True
    if not _whole_free(layout)[~private].any():
        return 0, False
    earlier = allocations[(allocations["alloc"].to_numpy() < event) & (allocations["pool"].to_numpy() != 0)]
    return (int(earlier["pool"].iloc[earlier["alloc"].to_numpy().argmax()]), True) if len(earlier) else (0, False)


def _whole_free(layout: Layout) -> npt.NDArray[np.bool_]:
    """Mark segments without any block."""
    used = layout.ranges["segment"].to_numpy()[layout.ranges["state"].to_numpy() != FREE]
    free = np.ones(len(layout.segments), dtype=bool)
    free[used] = False
    return free


@dataclass(frozen=True)
class _Room:
    """Free bytes at the failure, by whether the request could use them."""

    own_free: int
    largest_hole: int
    pool_held: int
    other_streams: int
    releasable: int


def _own_segments(layout: Layout, *, small: bool, stream: int, pool: int) -> npt.NDArray[np.bool_]:
    table = layout.segments
    own: npt.NDArray[np.bool_] = (
        (table["small"] == small) & (table["stream"] == stream) & (table["pool"] == pool)
    ).to_numpy()
    return own


def _room(layout: Layout, *, small: bool, stream: int, pool: int) -> _Room:
    holes = layout.holes
    size, segment = holes["size"].to_numpy(), holes["segment"].to_numpy()
    own = _own_segments(layout, small=small, stream=stream, pool=pool)[segment]
    empty = _whole_free(layout)[segment]
    private = layout.segments["pool"].to_numpy()[segment] != 0
    same_place = ((layout.segments["stream"] == stream) & (layout.segments["pool"] == pool)).to_numpy()[segment]
    return _Room(
        own_free=int(size[own].sum()),
        largest_hole=int(size[own].max(initial=0)),
        pool_held=int(size[private & empty & ~own].sum()),
        other_streams=int(size[~same_place & ~empty].sum()),
        # Captures and MemPools in use keep PyTorch from releasing these by itself.
        releasable=int(size[~private & empty & ~own].sum()),
    )


def _verdict(failure: OutOfMemory, *, limit_known: bool) -> str:
    """Give the first cause that holds: what PyTorch held itself comes before what others held."""
    if failure.own_free >= failure.requested:
        return "fragmentation"
    if failure.pool_held + failure.other_streams + failure.releasable >= failure.requested:
        return "stranded_pool"
    if failure.limit is not None and failure.reserved + failure.segment > failure.limit:
        return "limit"
    if failure.device_free is None:
        return "unknown"
    if failure.device_free >= failure.segment:
        return "driver_refused" if limit_known else "limit"
    if failure.not_pytorch is None or failure.device_free + failure.not_pytorch < failure.segment:
        return "capacity"
    if failure.others is None or failure.outside is None:
        return "unknown"
    return "other_processes" if failure.others > failure.outside else "outside_allocator"


# ---- why, in words


def _reasons(snapshot: Snapshot, failure: OutOfMemory, layout: Layout, facts: Facts) -> list[str]:
    found = [
        *_about_the_request(snapshot, failure, layout),
        *_about_own_holes(failure),
        *_about_stranded(snapshot, failure),
        *_about_what_was_tried(failure),
        *_about_the_driver(failure),
        *_about_the_rest_of_the_card(failure),
    ]
    if facts.messages and failure.message is None:
        last = facts.messages[-1]
        found.append(
            f"The message given is of another failure (it asks for {format_bytes(last.requested)}): only the card's "
            "size was taken from it."
        )
    if failure.message is not None and failure.message.private_free:
        found.append(
            f"PyTorch's message says {format_bytes(failure.message.printed_allocated)} allocated, with "
            f"{format_bytes(failure.message.private_free)} in private pools: those are free blocks of the pools, which "
            f"nothing uses. Tensors hold {format_bytes(failure.allocated)}."
        )
    return found


def _about_the_request(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[str]:
    asked, segment = format_bytes(failure.requested), format_bytes(failure.segment)
    if segment != asked:
        asked += f" ({segment} from the driver)"
    found = [
        f"{asked} was asked for; {format_bytes(failure.allocated)} was allocated and "
        f"{format_bytes(failure.reserved - failure.active)} of the {format_bytes(failure.reserved)} reserved was free."
    ]
    if failure.active != failure.allocated:
        found.append(
            f"{format_bytes(failure.active - failure.allocated)} more was freed, but still waited for another stream."
        )
    twins = _twins(snapshot, failure, layout)
    if failure.site.kind == "backward":
        found.append(
            f"The backward pass asked ({failure.site.function}): it runs on a thread of its own, without Python "
            f"lines.{twins}"
        )
    elif failure.site.kind == "none":
        found.append(f"The request has no stack: the backward pass runs on a thread without Python lines.{twins}")
    elif failure.site.kind != "user":
        found.append(f"The request's stack has no line of your code: {failure.site.label} asked.{twins}")
    if not failure.pool_recorded:
        found.append(
            "The file does not say which memory pool the request came from (files of PyTorch 2.12 and later do): the "
            "default pool is assumed. A request from a private pool could use nothing of what follows."
        )
    return found


def _twins(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> str:
    """Name the lines that hold blocks of the very size asked for: most often the forward side of the request."""
    same = layout.ranges[
        (layout.ranges["state"] == ALLOCATED) & (layout.ranges["size"].sub(failure.requested).between(0, SMALL_SIZE))
    ]
    if not len(same) or failure.small:
        return ""
    lives = snapshot.replay[failure.device].allocations.iloc[same["life"].to_numpy()]
    sites = by_site(snapshot, lives)
    named = sites[sites["kind"] == "user"]
    named = named if len(named) else sites[sites["kind"] != "none"]
    if not len(named):
        return ""
    return f" Alive of this size: {_blocks(len(same))}, among them from {named['site'].iloc[0]}."


def _blocks(count: int) -> str:
    return "1 block" if count == 1 else f"{format_count(count)} blocks"


def _about_own_holes(failure: OutOfMemory) -> list[str]:
    if failure.own_free >= failure.requested:
        return [
            f"{format_bytes(failure.own_free)} was free for this request, in holes of at most "
            f"{format_bytes(failure.largest_hole)}: contiguous, it would have fitted."
        ]
    if failure.own_free:
        return [
            f"The {format_bytes(failure.own_free)} of holes that this request may use could not have held it anyway "
            f"(largest {format_bytes(failure.largest_hole)}): this is not fragmentation."
        ]
    return []


def _about_stranded(snapshot: Snapshot, failure: OutOfMemory) -> list[str]:
    found = []
    if failure.pool_held or failure.other_streams:
        held = [f"{format_bytes(failure.pool_held)} is held by private pools"] if failure.pool_held else []
        if failure.other_streams:
            held.append(f"{format_bytes(failure.other_streams)} is kept in segments of other streams or pools")
        found.append(f"{' and '.join(held)}: free, but not for this request.")
    if failure.releasable:
        why = (
            "PyTorch releases nothing while a graph is captured or a MemPool is in use"
            if failure.pool != 0
            else "it lies in segments that were not released"
        )
        found.append(f"{format_bytes(failure.releasable)} in wholly free segments was not used either: {why}.")
    if failure.pool != 0:
        found.append(f"The request came from the private pool {snapshot.pools[failure.pool]}.")
    return found


def _about_what_was_tried(failure: OutOfMemory) -> list[str]:
    if not failure.released_before:
        return []
    return [
        f"Before giving up PyTorch had released {format_bytes(failure.released_before)} of wholly free segments to the "
        "driver; what was left could not be released."
    ]


def _about_the_driver(failure: OutOfMemory) -> list[str]:
    free, limit = failure.device_free, failure.limit
    if limit is not None and failure.reserved + failure.segment > limit:
        short = failure.reserved + failure.segment - limit
        left = f" The driver still had {format_bytes(free)} free." if free is not None else ""
        return [
            f"PyTorch may reserve {format_bytes(limit)}; with the {format_bytes(failure.segment)} needed it would be "
            f"{format_bytes(short)} over.{left}"
        ]
    if free is None:
        return [
            "Neither the file nor a message says how much memory the driver had free; give PyTorch's message with "
            "--message."
        ]
    if free < failure.segment:
        return [f"The driver had {format_bytes(free)} free, less than the {format_bytes(failure.segment)} needed."]
    enough = f"The driver still had {format_bytes(free)} free, enough for the {format_bytes(failure.segment)} needed"
    if failure.limit_high is not None:
        return [
            f"{enough}. So PyTorch itself was held back: a limit of at least {format_bytes(failure.limit_low)} and "
            f"less than {format_bytes(failure.limit_high)} (set_per_process_memory_fraction), unless the driver "
            "refused."
        ]
    return [f"{enough}, and no limit was set: the driver refused, as it may where its own memory is in pieces."]


def _about_the_rest_of_the_card(failure: OutOfMemory) -> list[str]:
    if failure.not_pytorch is None:
        if failure.verdict != "capacity":
            return []
        return [
            "Live tensors fill what the driver gave; what other processes and libraries hold is not in the file: "
            "--message or --card tell."
        ]
    if failure.others is None or failure.outside is None:
        found = [
            f"Of the card's {format_bytes(failure.card)}, {format_bytes(failure.not_pytorch)} is neither PyTorch's nor "
            "free: this process's libraries or other processes. PyTorch's full message tells which."
        ]
    else:
        found = [
            f"Of the card's {format_bytes(failure.card)}, {format_bytes(failure.outside)} is this process outside "
            f"PyTorch (context, kernels, libraries) and {format_bytes(failure.others)} other processes."
        ]
    if failure.verdict == "capacity":
        found.append("Even all of that would not have been enough: live tensors alone ask for more than the card has.")
    return found


def _released_before(events: pd.DataFrame, event: int) -> int:
    """Sum the segments that were given back directly before the failure."""
    action = events["action"].cat.codes.to_numpy()
    gives_back = (ACTION_CODE["segment_free"], ACTION_CODE["segment_unmap"])
    first = event
    while first > 0 and action[first - 1] in gives_back:
        first -= 1
    return int(events["size"].to_numpy()[first:event].sum())


# ---- what would make it fit


def may_expand(snapshot: Snapshot) -> bool:
    """Say whether expandable segments can be advised: not on yet, and no MemPool that may forbid them."""
    on = snapshot.settings.expandable_segments or bool(snapshot.segments["expandable"].any())
    return not on and not any(second != 0 for _, second in snapshot.pools)


def _changes(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
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
    return [*found, *_hold_less(snapshot, failure), *_ask_less(failure)]


def _join_holes(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    found = []
    if may_expand(snapshot):
        room = failure.room or 0
        found.append(
            Change(
                "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: its free pages join, wherever they lie",
                failure.own_free,
                failure.own_free + room >= failure.requested,
            )
        )
    window = _cheapest_window(snapshot, failure, layout)
    if window is not None:
        found.append(window)
    return found


def _cheapest_window(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> Change | None:
    """Find the fewest bytes of blocks that, freed, open a hole for the request within one segment."""
    own = _own_segments(layout, small=failure.small, stream=failure.stream, pool=failure.pool)
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
        f"Free {_blocks(len(lives))} of {names} between holes: a hole of "
        f"{format_bytes(int(end[high] - start[low]))} opens",
        int(cost[best]),
        True,
    )


def _release_stranded(snapshot: Snapshot, failure: OutOfMemory, layout: Layout) -> list[Change]:
    found = []
    if failure.releasable:
        found.append(
            Change(
                "Call torch.cuda.empty_cache() before the capture or the MemPool begins",
                failure.releasable,
                failure.releasable + (failure.room or 0) >= failure.segment,
            )
        )
    held = layout.segments["pool"].to_numpy()[_whole_free(layout)]
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
    most = max(failure.largest_hole, 0 if failure.limit_high is not None else failure.room or 0)
    if failure.room is None or not 0 < most < failure.requested or most < failure.requested // 8:
        return []
    return [
        Change(
            f"Ask for {format_bytes(most)} at most, for example with a micro-batch of "
            f"{most / failure.requested:.0%} of this one, in one piece or several",
            failure.requested - most,
            True,
        )
    ]


# ---- the message alone


@dataclass(frozen=True)
class Explanation:
    """What a message says by itself.

    Attributes:
        message: its figures.
        verdict: one of ``VERDICTS``.
        reasons: sentences that argue for it.

    """

    message: OomMessage
    verdict: str
    reasons: tuple[str, ...]


def explain_message(message: OomMessage) -> Explanation:
    """Judge by the message alone: whether holes or pools could have served the request it cannot say."""
    reasons = [f"{format_bytes(message.requested)} was asked of the driver."]
    verdict = _message_verdict(message)
    cached = None
    if message.reserved is not None and message.allocated is not None:
        cached = message.reserved - message.allocated
        reasons.append(
            f"PyTorch held {format_bytes(message.reserved)}: {format_bytes(message.allocated)} in tensors, "
            f"{format_bytes(cached)} free."
        )
    if message.private_free:
        reasons.append(
            f'The {format_bytes(message.private_free)} "allocated in private pools" are free blocks of those pools: '
            f"the message counts them into its {format_bytes(message.printed_allocated)}; nothing uses them."
        )
    if cached is not None and cached - (message.private_free or 0) < message.requested:
        reasons.append("The free part is smaller than the request: this is not fragmentation.")
    elif cached is not None:
        reasons.append(
            "The free part is larger than the request: whether its holes, or another stream's segments, kept it from "
            "fitting, only a memory snapshot tells."
        )
    if message.allowed is not None:
        reasons.append(f"A limit of {format_bytes(message.allowed)} was set on PyTorch.")
    if message.free is not None:
        enough = "enough" if message.free >= message.requested else "too little"
        reasons.append(f"The driver had {format_bytes(message.free)} free: {enough}.")
    if message.outside is not None:
        reasons.append(
            f"{format_bytes(message.outside)} of this process lies outside PyTorch; other processes had "
            f"{format_bytes(message.others_total)}."
        )
    elif message.capacity is not None and message.free is not None and message.reserved is not None:
        rest = max(0, message.capacity - message.free - message.reserved)
        reasons.append(f"{format_bytes(rest)} of the card is neither PyTorch's nor free.")
    return Explanation(message, verdict, tuple(reasons))


def _message_verdict(message: OomMessage) -> str:
    private = message.private_free or 0
    if message.reserved is not None and message.allocated is not None:
        if message.reserved - message.allocated - private >= message.requested:
            return "unknown"
        if private >= message.requested:
            return "stranded_pool"
        if message.allowed is not None and message.reserved + message.requested > message.allowed:
            return "limit"
    if message.free is None:
        return "limit" if message.allowed is not None else "unknown"
    if message.free >= message.requested:
        # Until 2.0 a limit was not always printed.
        return "driver_refused" if message.allowed is None and message.process is not None else "limit"
    others, outside = message.others_total, message.outside
    if others is None or outside is None:
        rest = (message.capacity or 0) - message.free - (message.reserved or 0)
        return "unknown" if message.free + rest >= message.requested else "capacity"
    if message.free + others + outside < message.requested:
        return "capacity"
    return "other_processes" if others > outside else "outside_allocator"
