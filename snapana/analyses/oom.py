"""Every allocation that failed: what was asked, what was there, and why it did not fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from snapana.allocator.layout import FREE, Layout
from snapana.allocator.rounding import SMALL_SIZE, segment_size
from snapana.analyses.peak import Peak, instant
from snapana.snapshot.model import ACTION_CODE, Snapshot
from snapana.snapshot.stacks import Site
from snapana.units import format_bytes


@dataclass(frozen=True)
class OutOfMemory:
    """One failed allocation.

    Attributes:
        event: index in the device's trace.
        time_us: microseconds since the epoch, None if not recorded.
        requested: bytes asked for, rounded by the allocator.
        segment: bytes that the allocator asked the driver for.
        site: who asked.
        stack: its stack id, -1 if none.
        small: whether the request belongs to the small pool.
        stream: the request's stream.
        allocated: bytes allocated at that moment.
        active: bytes active.
        reserved: bytes reserved.
        own_free: free bytes in the pool, stream and size class of the request.
        largest_hole: the largest contiguous one of them.
        pool_held: free bytes in wholly free segments of private pools.
        other_streams: free bytes cached for other streams, kept by blocks there.
        device_free: bytes that the driver had free, None if not recorded.
        released_before: bytes that PyTorch gave back to the driver for this request.
        limit_low: PyTorch may reserve at least this much, where a limit is inferred.
        limit_high: and less than this.
        verdict: ``fragmentation``, ``stranded_pool``, ``limit``, ``capacity`` or ``unknown``.
        reasons: sentences that argue for it, with their figures.
        live: what was allocated, by site.

    """

    event: int
    time_us: int | None
    requested: int
    segment: int
    site: Site
    stack: int
    small: bool
    stream: int
    allocated: int
    active: int
    reserved: int
    own_free: int
    largest_hole: int
    pool_held: int
    other_streams: int
    device_free: int | None
    released_before: int
    limit_low: int | None
    limit_high: int | None
    verdict: str
    reasons: tuple[str, ...]
    live: Peak


def out_of_memory(snapshot: Snapshot, device: int) -> list[OutOfMemory]:
    """Explain every ``oom`` event of the window, in order."""
    events = snapshot.events_of(device)
    failed = np.flatnonzero(events["action"].cat.codes.to_numpy() == ACTION_CODE["oom"])
    return [_explain(snapshot, device, events, int(event)) for event in failed]


@dataclass(frozen=True)
class _Room:
    """Free bytes at the failure, by whether the request could use them."""

    own_free: int
    largest_hole: int
    pool_held: int
    other_streams: int


def _explain(snapshot: Snapshot, device: int, events: pd.DataFrame, event: int) -> OutOfMemory:
    row = events.iloc[event]
    requested = int(row["size"])
    small = requested <= SMALL_SIZE
    segment = segment_size(requested, snapshot.settings.large_segment_size)
    replay = snapshot.replay[device]
    layout = replay.layout(event)
    stream, pool = int(row["stream"]), max(int(row["pool"]), 0)
    room = _room(layout, small=small, stream=stream, pool=pool)
    live = instant(snapshot, device, event)
    device_free = int(row["device_free"]) if int(row["device_free"]) >= 0 else None
    verdict = _verdict(requested, segment, room, device_free)
    site = snapshot.stacks.site(int(row["stack"]))
    limited = device_free is not None and device_free >= segment
    return OutOfMemory(
        event=event,
        time_us=replay.time_us(event),
        requested=requested,
        segment=segment,
        site=site,
        stack=int(row["stack"]),
        small=small,
        stream=stream,
        allocated=live.allocated,
        active=live.active,
        reserved=live.reserved,
        own_free=room.own_free,
        largest_hole=room.largest_hole,
        pool_held=room.pool_held,
        other_streams=room.other_streams,
        device_free=device_free,
        released_before=_released_before(events, event),
        limit_low=live.reserved if limited else None,
        limit_high=live.reserved + segment if limited else None,
        verdict=verdict,
        reasons=tuple(_reasons(requested, segment, room, live, device_free, verdict, site)),
        live=live,
    )


def _room(layout: Layout, *, small: bool, stream: int, pool: int) -> _Room:
    segments = layout.segments
    holes = layout.ranges[layout.ranges["state"] == FREE]
    where = segments.iloc[holes["segment"].to_numpy()].reset_index(drop=True)
    size = holes["size"].to_numpy()
    own = ((where["small"] == small) & (where["stream"] == stream) & (where["pool"] == pool)).to_numpy()
    used = np.unique(layout.ranges["segment"].to_numpy()[layout.ranges["state"].to_numpy() != FREE])
    empty = ~np.isin(holes["segment"].to_numpy(), used)
    private = (where["pool"] != 0).to_numpy()
    elsewhere = (where["stream"] != stream).to_numpy() & ~private & ~empty
    return _Room(
        own_free=int(size[own].sum()),
        largest_hole=int(size[own].max(initial=0)),
        pool_held=int(size[private & empty & ~own].sum()),
        other_streams=int(size[elsewhere].sum()),
    )


def _verdict(requested: int, segment: int, room: _Room, device_free: int | None) -> str:
    """Give the first cause that holds: what PyTorch held itself comes before what others held."""
    if room.own_free >= requested:
        return "fragmentation"
    if room.pool_held + room.other_streams >= requested:
        return "stranded_pool"
    if device_free is None:
        return "unknown"
    return "limit" if device_free >= segment else "capacity"


def _reasons(
    requested: int,
    segment: int,
    room: _Room,
    live: Peak,
    device_free: int | None,
    verdict: str,
    site: Site,
) -> list[str]:
    cached = live.reserved - live.active
    asked = format_bytes(requested)
    found = [
        f"{asked} was asked for; {format_bytes(live.allocated)} was allocated and {format_bytes(cached)} of the "
        f"{format_bytes(live.reserved)} reserved was free."
    ]
    if room.own_free >= requested:
        found.append(
            f"{format_bytes(room.own_free)} of it was free for this request, in holes of at most "
            f"{format_bytes(room.largest_hole)}: contiguous, it would have fitted."
        )
    elif room.own_free:
        found.append(
            f"The {format_bytes(room.own_free)} of holes that this request may use could not have held it anyway "
            f"(largest {format_bytes(room.largest_hole)}): this is not fragmentation."
        )
    stranded = room.pool_held + room.other_streams
    if stranded:
        found.append(
            f"{format_bytes(room.pool_held)} is held by private pools and {format_bytes(room.other_streams)} by "
            "other streams: free, but not for this request."
        )
    if device_free is None:
        found.append("The file does not say how much memory the driver had free.")
    elif device_free >= segment:
        found.append(
            f"The driver still had {format_bytes(device_free)} free, enough for the {format_bytes(segment)} needed. "
            f"So PyTorch itself was held back: a limit of at least {format_bytes(live.reserved)} and less than "
            f"{format_bytes(live.reserved + segment)} (set_per_process_memory_fraction), unless the driver refused."
        )
    else:
        found.append(f"The driver had {format_bytes(device_free)} free, less than the {format_bytes(segment)} needed.")
    if site.kind == "backward":
        found.append(
            f"The backward pass asked ({site.function}): it runs on a thread of its own, without Python lines."
        )
    elif site.kind == "none":
        found.append("The request has no stack: the backward pass runs on a thread without Python lines.")
    if verdict == "capacity":
        found.append(
            "Live tensors fill what the driver gave; what other processes and libraries hold is not in this file."
        )
    return found


def _released_before(events: pd.DataFrame, event: int) -> int:
    """Sum the segments that were given back directly before the failure."""
    action = events["action"].cat.codes.to_numpy()
    gives_back = (ACTION_CODE["segment_free"], ACTION_CODE["segment_unmap"])
    first = event
    while first > 0 and action[first - 1] in gives_back:
        first -= 1
    return int(events["size"].to_numpy()[first:event].sum())
