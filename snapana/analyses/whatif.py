"""What the recorded requests would have reserved under other settings: asked of the simulated allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
import pandas as pd

from snapana.allocator.driver import DRIVERS, Driver
from snapana.allocator.rounding import LARGE_SEGMENT, Rounding
from snapana.allocator.settings import AllocatorSettings, parse_conf
from snapana.allocator.simulate import SimulatedOutOfMemoryError, Simulator
from snapana.analyses.churn import empty_cache_calls
from snapana.analyses.failure import OutOfMemory
from snapana.errors import SnapanaError
from snapana.snapshot.model import ACTION_CODE, Snapshot

MALLOC, FREE, FREE_REQUESTED, FREE_COMPLETED, EMPTY_CACHE, FAILED = range(6)
MIB = 1024**2
# Longer recordings take too long to ask beside everything else.
MOST_EVENTS = 80_000
# Each allocation is compared with all larger ones.
MOST_PACKED = 20_000


@dataclass(frozen=True)
class Workload:
    """What a program asked of the allocator, whatever that did.

    Attributes:
        operations: in order: (what, number of the allocation, event).
        requested: bytes, by number of the allocation; after those of the recording those of failed requests.
        stream: of each.
        pool: of each.
        pad: bytes that the allocator adds before rounding.
        known: whether the recording begins with an empty allocator and tells private pools.

    """

    operations: list[tuple[int, int, int]]
    requested: list[int]
    stream: list[int]
    pool: list[tuple[int, int]]
    pad: int
    known: bool


@dataclass(frozen=True)
class Run:
    """What the simulated allocator did with a workload.

    Attributes:
        conf: as of ``PYTORCH_CUDA_ALLOC_CONF``.
        peak_reserved: bytes; up to the failure, if there was one.
        low: least of ``peak_reserved`` over several orders in which the driver could place segments.
        high: most of them.
        peak_allocated: bytes; differs with rounding.
        allocated_low: least of ``peak_allocated`` over the same orders: blocks keep what is not worth splitting off.
        allocated_high: most of them.
        segments: made, or ranges mapped.
        freed: given back, or ranges unmapped.
        retries: requests that first failed and for which the cache was released.
        failed_at: number of the allocation that did not fit, None if all did.
        failed_event: its event.
        failed_bytes: what it requested.
        failed_again: of the requests whose failure is recorded, those that fail here too.
        smallest_capacity: the least limit under which all requests fit; None if it was not asked for.

    """

    conf: str
    peak_reserved: int
    low: int
    high: int
    peak_allocated: int
    allocated_low: int
    allocated_high: int
    segments: int
    freed: int
    retries: int
    failed_at: int | None
    failed_event: int | None
    failed_bytes: int | None
    failed_again: int
    smallest_capacity: int | None = None


@dataclass(frozen=True)
class Reproduction:
    """How exactly the model does again what was recorded, under the recorded settings and with the recorded places.

    Attributes:
        allocations: compared.
        mismatches: those after which other bytes are reserved than were.
        addresses: those at another address; None with expandable segments, whose ranges the file does not tell.
        peak_reserved_error: bytes by which the model's peak differs from the recorded one.

    """

    allocations: int
    mismatches: int
    addresses: int | None
    peak_reserved_error: int


@dataclass(frozen=True)
class WhatIf:
    """Answers for one device.

    Attributes:
        device: ordinal.
        conf: recorded settings.
        limit: bytes that might be reserved, None for no limit.
        peak_reserved: recorded, bytes.
        peak_allocated: recorded: no allocator needs less.
        packed: what an allocator needs that knows all lives beforehand; None for too many to tell.
        reproduction: how exact the model is here.
        runs: the recorded settings first.
        failures: recorded.
        notes: what the model does not know.

    """

    device: int
    conf: str
    limit: int | None
    peak_reserved: int
    peak_allocated: int
    packed: int | None
    reproduction: Reproduction
    runs: tuple[Run, ...]
    failures: int
    notes: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """The runs as a frame, one row each, the recorded settings first: the columns are the attributes of ``Run``."""
        return pd.DataFrame([vars(run) for run in self.runs])


# Settings and a placement order; None to look for the smallest capacity.
_Task = tuple[AllocatorSettings, int | None]


def workload(snapshot: Snapshot, device: int, last: int | None = None) -> Workload:
    """Take a device's requests out of its recording, up to before the event ``last``."""
    replay = snapshot.replay[device]
    lives, events = replay.allocations, replay.events
    born, asked, done = (lives[name].to_numpy() for name in ("alloc", "free_requested", "free_completed"))
    row = np.arange(len(lives))
    failed = np.flatnonzero(events["action"].cat.codes.to_numpy() == ACTION_CODE["oom"])
    emptied = empty_cache_calls(snapshot, device)
    parts = (
        (MALLOC, np.where(born == -1, -1, born), row, born >= -1),
        (FREE_REQUESTED, asked, row, asked >= 0),
        (FREE_COMPLETED, done, row, done >= 0),
        (EMPTY_CACHE, emptied, np.full(len(emptied), -1), np.ones(len(emptied), dtype=bool)),
        (FAILED, failed, len(lives) + np.arange(len(failed)), np.ones(len(failed), dtype=bool)),
    )
    what = np.concatenate([np.full(int(keep.sum()), kind) for kind, _, _, keep in parts])
    event = np.concatenate([at[keep] for _, at, _, keep in parts])
    number = np.concatenate([of[keep] for _, _, of, keep in parts])
    end = len(events) if last is None else last
    inside = event < end
    what, event, number = what[inside], event[inside], number[inside]
    # A free that no one recorded the request of is complete at once.
    order = np.lexsort((number, what, event))
    what, number, event = (column[order] for column in (what, number, event))
    # Most frees are complete with the next event.
    at_once = np.flatnonzero((what[:-1] == FREE_REQUESTED) & (what[1:] == FREE_COMPLETED) & (number[:-1] == number[1:]))
    what[at_once + 1] = FREE
    keep = np.ones(len(what), dtype=bool)
    keep[at_once] = False
    pools = [snapshot.pools[max(code, 0)] for code in lives["pool"].tolist()]
    return Workload(
        operations=list(zip(what[keep].tolist(), number[keep].tolist(), event[keep].tolist(), strict=True)),
        requested=[*lives["requested"].tolist(), *events["size"].to_numpy()[failed].tolist()],
        stream=[*lives["stream"].tolist(), *events["stream"].to_numpy()[failed].tolist()],
        pool=[*pools, *((0, 0) for _ in failed)],
        pad=snapshot.rounding_pad,
        known=replay.coverage.complete,
    )


def simulate(work: Workload, settings: AllocatorSettings, limit: int | None = None, *, ranges: bool = True) -> Run:
    """Run a workload under other settings.

    Args:
        work: the requests.
        settings: of the allocator.
        limit: bytes that may be reserved.
        ranges: whether to try several placement orders; expandable segments need none.

    """
    return _spread([_simulate(work, settings, limit, DRIVERS[at]()) for at in _orders(settings, ranges=ranges)])


def _orders(settings: AllocatorSettings, *, ranges: bool = True) -> range:
    """Give the placement orders to try, as indices into ``DRIVERS``."""
    return range(len(DRIVERS) if ranges and not settings.expandable_segments else 1)


def _spread(runs: Sequence[Run]) -> Run:
    """Give the first run, with the range of all."""
    peaks = [run.peak_reserved for run in runs]
    in_use = [run.peak_allocated for run in runs]
    return replace(runs[0], low=min(peaks), high=max(peaks), allocated_low=min(in_use), allocated_high=max(in_use))


def _simulate(
    work: Workload,
    settings: AllocatorSettings,
    limit: int | None,
    driver: Driver,
    after: Callable[[Simulator, int, int], None] | None = None,
    reserve: Callable[[int], int] | None = None,
) -> Run:
    peak_allocated = again = 0
    sim = Simulator(
        settings,
        rounding=Rounding(settings.roundup_power2_divisions, work.pad),
        limit=limit,
        place=driver.place,
        reserve=reserve,
        release=driver.release,
    )
    place: dict[int, int] = {}
    failure: tuple[int, int, int] | None = None
    for what, number, event in work.operations:
        if what == MALLOC:
            try:
                addr = sim.malloc(max(work.requested[number], 1), work.stream[number], work.pool[number])
            except SimulatedOutOfMemoryError:
                failure = (number, event, work.requested[number])
                break
            place[number] = addr
            peak_allocated = max(peak_allocated, sim.allocated)
            if after is not None and event >= 0:
                after(sim, event, addr)
        elif what == FREE:
            sim.free(place[number])
        elif what == FREE_REQUESTED:
            sim.free_requested(place[number])
        elif what == FREE_COMPLETED:
            block = sim.live[place[number]]
            if block.allocated:
                sim.free_requested(place[number])
            sim.free_completed(place[number])
        elif what == EMPTY_CACHE:
            sim.empty_cache()
        else:
            # The recorded program went on after this failure, and did not have the memory.
            try:
                sim.free(sim.malloc(max(work.requested[number], 1), work.stream[number], work.pool[number]))
            except SimulatedOutOfMemoryError:
                again += 1
    at, event_of, size = failure if failure else (None, None, None)
    return Run(
        conf=settings.conf,
        peak_reserved=sim.peak_reserved,
        low=sim.peak_reserved,
        high=sim.peak_reserved,
        peak_allocated=peak_allocated,
        allocated_low=peak_allocated,
        allocated_high=peak_allocated,
        segments=sim.segments_made,
        freed=sim.segments_freed,
        retries=sim.retries,
        failed_at=at,
        failed_event=event_of,
        failed_bytes=size,
        failed_again=again,
    )


class _Recorded:
    """The places that the driver gave, in order."""

    def __init__(self, places: list[int]) -> None:
        self._places = iter(places)
        self._spare = 0x1000
        self._held: dict[int, int] = {}

    def place(self, size: int) -> int:
        found = next(self._places, None)
        # Where the model makes other segments than were made, a place may still be taken.
        if found is None or any(found < addr + room and addr < found + size for addr, room in self._held.items()):
            found, self._spare = self._spare, self._spare + size
        self._held[found] = size
        return found

    def release(self, addr: int, size: int) -> None:
        del self._held[addr]


def reproduce(snapshot: Snapshot, device: int, work: Workload, limit: int | None) -> Reproduction:
    """Compare the model with the recording, under the recorded settings."""
    replay = snapshot.replay[device]
    events = replay.events
    reserved = replay.curves["reserved"].to_numpy()
    addresses = events["addr"].to_numpy()
    placed = events["addr"][(events["action"] == "segment_alloc").to_numpy()].tolist()
    seen = bad = moved = 0

    def after(sim: Simulator, event: int, addr: int) -> None:
        nonlocal seen, bad, moved
        seen += 1
        bad += sim.reserved != int(reserved[event + 1])
        moved += addr != int(addresses[event])

    run = _simulate(work, snapshot.settings, limit, _Recorded(placed), after)
    return Reproduction(
        allocations=seen,
        mismatches=bad,
        addresses=None if snapshot.settings.expandable_segments else moved,
        peak_reserved_error=run.peak_reserved - int(reserved.max()),
    )


def limit_of(snapshot: Snapshot, failure: OutOfMemory) -> int | None:
    """Give what might be reserved when a request failed: no less than what ever was."""
    if failure.limit is not None:
        return failure.limit
    least = failure.limit_low
    if least is None and failure.device_free is not None:
        least = failure.reserved + failure.device_free
    return None if least is None else max(least, int(snapshot.replay[failure.device].curves["reserved"].max()))


def smallest_capacity(work: Workload, settings: AllocatorSettings, grain: int = 2 * 1024**2) -> int:
    """Bisect the least limit, in multiples of ``grain``, under which all requests fit, those that failed too."""
    free = simulate(work, settings, ranges=False)
    low, high = free.peak_allocated // grain, -(-free.peak_reserved // grain)
    while low < high:
        middle = (low + high) // 2
        run = simulate(work, settings, middle * grain, ranges=False)
        if run.failed_at is None and not run.failed_again:
            high = middle
        else:
            low = middle + 1
    return high * grain


def worth_trying(work: Workload, limit: int | None) -> list[str]:
    """Give the settings that can change anything for these requests."""
    largest = max(work.requested, default=0)
    confs = ["expandable_segments:True"]
    confs += [f"max_split_size_mb:{size}" for size in (64, 128, 256, 512) if largest >= size * MIB]
    confs += [f"roundup_power2_divisions:{parts}" for parts in (4, 8) if largest > MIB]
    if limit is not None:
        confs += [f"garbage_collection_threshold:{share}" for share in (0.6, 0.8)]
    return confs


def with_empty_cache(work: Workload, events: Sequence[int]) -> Workload:
    """Call ``empty_cache()`` after some events besides."""
    added = [(EMPTY_CACHE, -1, event) for event in events]
    return replace(work, operations=sorted([*work.operations, *added], key=lambda one: one[2]))


def with_preallocation(work: Workload, size: int) -> Workload:
    """Allocate one block of so many bytes before all else, and free it at once."""
    number = len(work.requested)
    first = [(MALLOC, number, -2), (FREE, number, -2)]
    return replace(
        work,
        operations=[*first, *work.operations],
        requested=[*work.requested, size],
        stream=[*work.stream, 0],
        pool=[*work.pool, (0, 0)],
    )


def fitting(snapshot: Snapshot, failure: OutOfMemory) -> Callable[[str], bool] | None:
    """Give what says whether a failed request, and all before it, would have fitted under other settings.

    Returns:
        None where the recording does not begin with an empty allocator, is too long, or the limit is not known.

    """
    limit = limit_of(snapshot, failure)
    if not snapshot.replay[failure.device].coverage.complete or failure.event > MOST_EVENTS or limit is None:
        return None
    work = workload(snapshot, failure.device, failure.event)
    number = len(work.requested)
    asked = replace(
        work,
        operations=[*work.operations, (MALLOC, number, failure.event)],
        requested=[*work.requested, failure.requested],
        stream=[*work.stream, failure.stream],
        pool=[*work.pool, snapshot.pools[failure.pool]],
    )
    return lambda conf: simulate(asked, parse_conf(conf), limit, ranges=False).failed_at is None


def packed(snapshot: Snapshot, device: int) -> int | None:
    """Give the bytes that an allocator would need that knew all lives beforehand.

    Blocks are put down largest first, each as low as it fits.

    Returns:
        None for more than ``MOST_PACKED`` allocations.

    """
    lives = snapshot.replay[device].allocations
    if len(lives) > MOST_PACKED:
        return None
    done = lives["free_completed"].to_numpy()
    born, gone = lives["alloc"].to_numpy(), np.where(done == -1, np.iinfo(np.int64).max, done)
    size = lives["size"].to_numpy()
    order = np.lexsort((born, -size))
    order = order[gone[order] > born[order]]
    born, gone, size = born[order], gone[order], size[order]
    offset = np.zeros(len(order), dtype=np.int64)
    for number in range(len(order)):
        beside = np.flatnonzero((born[:number] < gone[number]) & (gone[:number] > born[number]))
        beside = beside[np.argsort(offset[beside], kind="stable")]
        ends = np.maximum.accumulate(np.concatenate([[0], (offset + size)[beside]]))
        room = np.append(offset[beside], np.iinfo(np.int64).max) - ends
        offset[number] = ends[int(np.argmax(room >= size[number]))]
    return int((offset + size).max(initial=0))


def what_if(
    snapshot: Snapshot,
    device: int,
    confs: Sequence[str] = (),
    *,
    limit: int | None = None,
    sweep: bool = False,
    smallest: bool = False,
    workers: int = 1,
    change: Callable[[Workload], Workload] = lambda work: work,
    progress: Callable[[str], None] = lambda text: None,
) -> WhatIf:
    """Ask what the recorded requests would have reserved under other settings.

    Args:
        snapshot: the file.
        device: ordinal.
        confs: strings as of ``PYTORCH_CUDA_ALLOC_CONF``.
        limit: bytes that may be reserved; None for no limit.
        sweep: try also the settings that can change anything.
        smallest: find the smallest capacity for each.
        workers: processes to use where there is much to do; a script that asks for several needs the guard that
            ``multiprocessing`` documents.
        change: applied to the requests.
        progress: told what is being done.

    Raises:
        SnapanaError: ``settings.invalid``; ``whatif.nothing`` where no allocation was recorded.

    """
    own = workload(snapshot, device)
    if not any(what == MALLOC and event >= 0 for what, _, event in own.operations):
        raise SnapanaError(
            "whatif.nothing",
            f"{snapshot.info.name} holds no allocations of device {device}: there is nothing to run again.",
            "Call torch.cuda.memory._record_memory_history() before the model is built.",
        )
    tried = worth_trying(own, limit) if sweep else []
    wanted = [snapshot.settings, *map(parse_conf, confs), *(parse_conf(conf) for conf in tried if conf not in confs)]
    released = bool((snapshot.replay[device].events["action"] == "segment_free").sum())
    work = change(own)
    # cuDNN calls empty_cache() while it tries algorithms, and takes other workspaces each time.
    slack = LARGE_SEGMENT if any(what == EMPTY_CACHE for what, _, _ in own.operations) else 0
    tasks: list[_Task] = [(settings, at) for settings in wanted for at in _orders(settings)]
    tasks += [(settings, None) for settings in wanted if smallest]
    replay = snapshot.replay[device]
    with _answers(work, limit, tasks, workers) as answers:
        progress("Running the recorded settings again")
        again = reproduce(snapshot, device, own, limit)
        progress("Packing the same lives")
        least = packed(snapshot, device)
        found = []
        for number, answer in enumerate(answers):
            found.append(answer)
            progress(f"Simulated {number + 1} of {len(tasks)} runs")
    runs = []
    for settings in wanted:
        own_runs = [found.pop(0) for _ in _orders(settings)]
        runs.append(_allow(_spread([run for run in own_runs if isinstance(run, Run)]), slack, limit))
    sizes = [answer for answer in found if isinstance(answer, int)]
    if smallest:
        runs = [replace(run, smallest_capacity=size) for run, size in zip(runs, sizes, strict=True)]
    return WhatIf(
        device=device,
        conf=snapshot.settings.conf,
        limit=limit,
        peak_reserved=int(replay.curves["reserved"].max()),
        peak_allocated=int(replay.curves["allocated"].max()),
        packed=least,
        reproduction=again,
        runs=tuple(runs),
        failures=int((replay.events["action"] == "oom").sum()),
        notes=tuple(_notes(own, again, slack, limit, released)),
    )


def _allow(run: Run, slack: int, limit: int | None) -> Run:
    """Widen the range by what the requests themselves may differ, but not beyond what is possible."""
    low, high = run.low - slack, run.high + slack
    if limit is not None:
        high = max(run.peak_reserved, min(high, limit))
    return replace(run, low=max(low, 0), high=high)


@contextmanager
def _answers(work: Workload, limit: int | None, tasks: Sequence[_Task], workers: int) -> Iterator[Iterator[Run | int]]:
    """Do tasks in order: in several processes where there is much to do, as soon as the body begins."""
    if min(len(tasks), workers) < 2 or len(tasks) * len(work.operations) < 500_000:
        yield (_answer(work, limit, task) for task in tasks)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _take, (work, limit)) as pool:
        yield pool.map(_answer_taken, tasks)


# What the worker processes are asked about: given once to each, since it is large.
_taken: list[tuple[Workload, int | None]] = []


def _take(work: Workload, limit: int | None) -> None:
    _taken.append((work, limit))


def _answer_taken(task: _Task) -> Run | int:
    return _answer(*_taken[-1], task)


def _answer(work: Workload, limit: int | None, task: _Task) -> Run | int:
    settings, at = task
    return smallest_capacity(work, settings) if at is None else _simulate(work, settings, limit, DRIVERS[at]())


def _notes(work: Workload, again: Reproduction, slack: int, limit: int | None, released: bool) -> list[str]:
    """List what the model cannot know of this recording."""
    notes = []
    if again.mismatches:
        notes.append(
            f"The model reserves other bytes than were recorded after {again.mismatches:,} of {again.allocations:,} "
            "allocations: take its figures with care."
        )
        if limit is None and released:
            notes.append("It released its cache for requests that failed at first: give the limit with --capacity.")
    if not work.known:
        notes.append("The recording began late: what was cached before it is unknown.")
    if slack:
        notes.append(
            "The recorded program emptied the cache; as cuDNN does when it tries algorithms, whose workspaces "
            "differ from run to run: the ranges allow for one segment of 20 MiB."
        )
    notes.append("Other processes, libraries and requests that would change by themselves are not in the model.")
    return notes
