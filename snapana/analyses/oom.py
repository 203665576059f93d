"""Every allocation that failed: what was asked, what was there, and why it did not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.layout import Layout
from snapana.allocator.rounding import SMALL_BUFFER, SMALL_SIZE, segment_size
from snapana.analyses.failure import Facts, OutOfMemory, all_facts
from snapana.analyses.fragmentation import fragmentation
from snapana.analyses.oom_changes import changes
from snapana.analyses.oom_reasons import reasons
from snapana.analyses.peak import instant
from snapana.frames import rows
from snapana.message import OomMessage, tolerance
from snapana.snapshot.model import ACTION_CODE, Snapshot

# A loop that catches failures can have thousands: the last of them are explained in full.
EXPLAINED = 20
# So many are looked at; each costs a layout.
LOOKED_AT = 200


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


def out_of_memory(
    snapshot: Snapshot,
    device: int,
    facts: Facts | None = None,
    categories: npt.NDArray[np.int64] | None = None,
    explained: int = EXPLAINED,
) -> list[OutOfMemory]:
    """Explain every ``oom`` event of the window, in order; of very many the last ``LOOKED_AT``.

    A file without one, such as an observer's that skips the action, is explained at its end where a message is given
    whose figures are those of the final state. The last ``explained`` are told what would have made them fit.
    """
    facts = all_facts(snapshot, facts)
    found = (_requests(snapshot, device) or _request_of_message(snapshot, device, facts))[-LOOKED_AT:]
    return [
        _explain(snapshot, device, request, facts, categories, full=number >= len(found) - explained)
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
    # The message prints the segment: of a small one the request is not known, but that it is small.
    size = SMALL_SIZE if message.requested <= SMALL_BUFFER else message.requested
    return [_Request(last, size, 0, -1, -1, message.free, fatal=True)]


def _explain(
    snapshot: Snapshot,
    device: int,
    request: _Request,
    facts: Facts,
    categories: npt.NDArray[np.int64] | None,
    *,
    full: bool,
) -> OutOfMemory:
    small = request.size <= SMALL_SIZE
    segment = segment_size(request.size, snapshot.settings.large_segment_size)
    replay = snapshot.replay[device]
    layout = replay.layout(request.event)
    pool, recorded = _pool_of_request(replay.allocations, layout, request.event, request.pool)
    room = _room(layout, small=small, stream=request.stream, pool=pool)
    live = instant(snapshot, device, request.event, categories)
    reserved = live.reserved or 0
    message = _matching(facts.messages, device, segment, live.allocated, reserved)
    free = request.device_free
    free = free if free is not None or message is None else message.free
    card = _card(facts, device, free, reserved)
    limit = facts.limit_of(device)
    limit = limit if limit is not None or message is None else message.allowed
    limited = free is not None and free >= segment
    rest = None if card is None or free is None else max(0, card - free - reserved)
    others = message.others_total if message is not None else None
    # A limit that was given, but does not explain the failure, cannot be the only one.
    explained = limit is not None and reserved + segment > limit
    known = explained or facts.knows_limit(device) or (message is not None and message.names_limits)
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
        reserved=reserved,
        own_free=room.own_free,
        largest_hole=room.largest_hole,
        pool_held=room.pool_held,
        other_streams=room.other_streams,
        releasable=room.releasable,
        device_free=free,
        released_before=_released_before(replay.events, request.event),
        limit=limit,
        limit_low=reserved if limited and not known else None,
        limit_high=reserved + segment if limited and not known else None,
        card=card,
        others=others,
        # The rest of the card, so that all parts sum to it: what the message prints is rounded.
        outside=None if rest is None or others is None else max(0, rest - others),
        not_pytorch=rest,
        message=message,
        verdict="unknown",
        live=live,
        cache=fragmentation(snapshot, device, request.event, "oom") if full else None,
    )
    failure = replace(failure, verdict=_verdict(failure, limit_known=known))
    failure = replace(failure, reasons=tuple(reasons(snapshot, failure, layout, facts)))
    return replace(failure, changes=tuple(changes(snapshot, failure, layout))) if full else failure


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


def _card(facts: Facts, device: int, free: int | None, reserved: int) -> int | None:
    """Give the card's size as told, or as a message of the device prints it; never less than what was on it."""
    told = facts.card_of(device)
    return None if told is None else max(told, reserved + (free or 0))


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
    if not layout.whole_free[~private].any():
        return 0, False
    earlier = allocations[(allocations["alloc"].to_numpy() < event) & (allocations["pool"].to_numpy() != 0)]
    return (int(earlier["pool"].iloc[earlier["alloc"].to_numpy().argmax()]), True) if len(earlier) else (0, False)


@dataclass(frozen=True)
class _Room:
    """Free bytes at the failure, by whether the request could use them."""

    own_free: int
    largest_hole: int
    pool_held: int
    other_streams: int
    releasable: int


def _room(layout: Layout, *, small: bool, stream: int, pool: int) -> _Room:
    holes = layout.holes
    size, segment = holes["size"].to_numpy(), holes["segment"].to_numpy()
    own = layout.owned(small=small, stream=stream, pool=pool)[segment]
    empty = layout.whole_free[segment]
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


def _released_before(events: pd.DataFrame, event: int) -> int:
    """Sum the segments that were given back directly before the failure."""
    action = events["action"].cat.codes.to_numpy()
    gives_back = (ACTION_CODE["segment_free"], ACTION_CODE["segment_unmap"])
    context = events["context"].to_numpy()
    first = event
    # What an empty_cache() before it released has another context.
    while first > 0 and action[first - 1] in gives_back and context[first - 1] == context[event]:
        first -= 1
    return int(events["size"].to_numpy()[first:event].sum())
