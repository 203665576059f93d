"""A snapshot and a trace of the same run, joined event by event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from snapana.allocator.replay import DeviceReplay
from snapana.errors import SnapanaError
from snapana.snapshot.model import ACTION_CODE, Snapshot
from snapana.trace.memory import TraceMemory
from snapana.trace.model import Trace

IntArray = npt.NDArray[np.int64]

# Fewer matches than this share of what both have mean different runs.
_SAME_RUN = 0.5
# And fewer than this share of the shorter one.
_LEAST = 0.01
# Clocks of one machine do not differ by more.
_CLOCKS_US = 10e6
# Times above are counted from 1970.
_ABSOLUTE_US = 1e14
# So many events of the trace are tried as anchors, and so many places for each.
_ANCHORS, _PLACES = 64, 200
# So many lost events are skipped at once, where so many agree behind them.
_SKIPPED, _AGREE = 64, 6


@dataclass(frozen=True)
class Join:
    """What of one device is in both files.

    Attributes:
        device: ordinal.
        matched: memory events of the trace with their event in the snapshot.
        unmatched: memory events of the trace within the snapshot's window that have none.
        clock_offset_us: what to add to the trace's times to have the snapshot's: the median over the matches.
        sizes_differ: matched allocations whose block sizes differ.
        of_event: for each event of the snapshot the index of the trace's memory event of the device, -1 for none.

    """

    device: int
    matched: int
    unmatched: int
    clock_offset_us: float
    sizes_differ: int
    of_event: IntArray


def join(snapshot: Snapshot, trace: Trace, built: TraceMemory, device: int) -> Join:
    """Match the trace's memory events with the snapshot's, in order, by address and direction.

    The profiler reports an allocation and a requested free in the order in which the allocator records them, so one is
    a contiguous part of the other; times only tell how far the clocks are apart.

    Raises:
        SnapanaError: ``join.different_runs`` where the sequences do not fit, ``join.no_device`` where the trace knows
            no memory of the device.

    """
    if device not in built.snapshot.replay.devices:
        raise SnapanaError(
            "join.no_device",
            f"{trace.info.name} holds no memory events of device {device}.",
            "Record it with profile_memory=True in the same process.",
        )
    left, right = snapshot.replay[device], built.snapshot.replay[device]
    events, calls = _sequence(left)
    own, theirs = _sequence(right)
    here = left.events["time_us"].to_numpy()[calls]
    there = trace.base_us + _times(trace, built, device)[theirs]
    # Where the trace gives no base, its times begin somewhere.
    clocks = bool(len(here)) and bool(len(there)) and int(here[0]) >= 0 and float(there[0]) > _ABSOLUTE_US
    place = _align(events, own, here if clocks else None, there)
    mine, its = _pairs(events, own, place)
    low, high = max(place, 0), min(place + len(own), len(events))
    common = max(high - low, 0)
    if len(mine) < max(_SAME_RUN * common, _LEAST * min(len(own), len(events)), 1):
        raise _different(
            trace, snapshot, f"of {common:,} memory events that could be common {len(mine):,} agree in their order"
        )
    offset = float(np.median(here[mine] - there[its])) if clocks else 0.0
    if abs(offset) > _CLOCKS_US:
        raise _different(
            trace, snapshot, f"the same addresses were used {abs(offset) / 1e6:,.0f} s apart, as by a second run"
        )
    of_event = np.full(len(left.events), -1, dtype=np.int64)
    of_event[calls[mine]] = theirs[its]
    return Join(
        device=device,
        matched=len(mine),
        unmatched=max(common - len(mine), 0),
        clock_offset_us=offset,
        sizes_differ=_sizes_differ(left, right, of_event),
        of_event=of_event,
    )


def _different(trace: Trace, snapshot: Snapshot, why: str) -> SnapanaError:
    return SnapanaError(
        "join.different_runs",
        f"{trace.info.name} and {snapshot.info.name} are not of the same run: {why}.",
        "Give the trace that was recorded in the same process.",
    )


def _times(trace: Trace, built: TraceMemory, device: int) -> npt.NDArray[np.float64]:
    """Give the device's times as the trace has them, finer than a microsecond."""
    kind = built.device_type[device]
    own = (trace.memory.device_type == kind) & (trace.memory.device == device)
    times: npt.NDArray[np.float64] = trace.memory.time[own]
    return times


def _sequence(replay: DeviceReplay) -> tuple[npt.NDArray[np.uint64], IntArray]:
    """Give (address, 1 for an allocation) of each allocation and requested free, and their events."""
    action = replay.events["action"].cat.codes.to_numpy()
    alloc = action == ACTION_CODE["alloc"]
    chosen = np.flatnonzero(alloc | (action == ACTION_CODE["free_requested"]) | (action == ACTION_CODE["free"]))
    addr = replay.events["addr"].to_numpy().astype(np.uint64)
    return np.column_stack([addr[chosen], alloc[chosen].astype(np.uint64)]), chosen


def _align(
    events: npt.NDArray[np.uint64], own: npt.NDArray[np.uint64], here: IntArray | None, there: npt.NDArray[np.float64]
) -> int:
    """Find where the trace's sequence begins in the snapshot's: where most agrees, of several the nearest in time.

    It may begin before the snapshot's window: then the place is negative. ``here`` and ``there`` are their times; the
    former is None where they cannot be compared.
    """
    best, place = 0, 0
    tried: set[int] = set()
    spread = np.unique(np.linspace(0, max(len(own) - 1, 0), _ANCHORS).astype(np.int64))
    for anchor in spread.tolist() if len(own) else []:
        hits = np.flatnonzero((events == own[anchor]).all(axis=1))
        if here is not None:
            hits = hits[np.argsort(np.abs(here[hits] - there[anchor]), kind="stable")]
        for hit in hits[:_PLACES].tolist():
            start = hit - anchor
            if start in tried:
                continue
            tried.add(start)
            low, high = max(start, 0), min(start + len(own), len(events))
            agree = int((events[low:high] == own[low - start : high - start]).all(axis=1).sum())
            if agree > best:
                best, place = agree, start
        if best >= 0.999 * min(len(own), len(events)):
            break
    return place


def _pairs(
    events: npt.NDArray[np.uint64], own: npt.NDArray[np.uint64], place: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give which events match, in order; where one of the two lost some, it goes on behind them."""
    at, its = max(place, 0), max(-place, 0)
    found: list[tuple[int, int, int]] = []
    while at < len(events) and its < len(own):
        length = min(len(events) - at, len(own) - its)
        same = (events[at : at + length] == own[its : its + length]).all(axis=1)
        run = length if same.all() else int(np.argmin(same))
        if run:
            found.append((at, its, run))
            at, its = at + run, its + run
            continue
        at, its = _onward(events, own, at, its)
    if not found:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    steps = [np.arange(run) for _, _, run in found]
    return (
        np.concatenate([first + step for (first, _, _), step in zip(found, steps, strict=True)]),
        np.concatenate([first + step for (_, first, _), step in zip(found, steps, strict=True)]),
    )


def _onward(events: npt.NDArray[np.uint64], own: npt.NDArray[np.uint64], at: int, its: int) -> tuple[int, int]:
    """Skip the fewest events of either, so that some agree again."""
    for skip in range(1, _SKIPPED):
        for ahead, behind in ((skip, 0), (0, skip), (skip, skip)):
            left, right = events[at + ahead : at + ahead + _AGREE], own[its + behind : its + behind + _AGREE]
            length = min(len(left), len(right))
            if length and (left[:length] == right[:length]).all():
                return at + ahead, its + behind
    return at + 1, its + 1


def _sizes_differ(left: DeviceReplay, right: DeviceReplay, of_event: IntArray) -> int:
    """Count matched allocations whose blocks differ in size: none, if both say the truth."""
    lives = left.allocations
    born = lives["alloc"].to_numpy()
    known = born >= 0
    partner = of_event[born[known]]
    found = partner >= 0
    size = right.events["size"].to_numpy()[partner[found]]
    return int((lives["size"].to_numpy()[known][found] != size).sum())


def joined_codes(snapshot: Snapshot, found: Join, codes: IntArray) -> IntArray:
    """Give each allocation of the snapshot what the trace says of its event; -2 where the trace does not cover it."""
    born = snapshot.replay[found.device].allocations["alloc"].to_numpy()
    partner = np.where(born >= 0, np.append(found.of_event, -1)[born], -1)
    joined: IntArray = np.where(partner >= 0, np.append(codes, -2)[partner], -2)
    return joined
