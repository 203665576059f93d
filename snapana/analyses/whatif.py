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
from snapana.units import format_bytes

MALLOC, FREE, FREE_REQUESTED, FREE_COMPLETED, EMPTY_CACHE, FAILED = range(6)
MIB = 1024**2
# Longer recordings take too long to ask beside everything else.
MOST_EVENTS = 80_000
# Each allocation is compared with all larger ones.
MOST_PACKED = 20_000
_GUESSED = (
    "The file does not tell the limit, which was {} at least: what runs out of memory here may have fitted. Give the "
    "limit with --capacity, or PyTorch's message with --message."
)


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
        failed_at: allocations that had succeeded when one did not fit, None if all did.
        failed_event: its event.
        failed_bytes: what it requested.
        failed_again: of the requests whose failure is recorded, those that fail here too.
        again_at: of the first of them: allocations that had succeeded, event, bytes; None if there is none.
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
    again_at: tuple[int, int, int] | None = None
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


@dataclass(frozen=True)
class _Task:
    """One thing to ask of the model: settings, and an order of placement, None to look for the smallest capacity."""

    settings: AllocatorSettings
    order: int | None
    changed: bool


@dataclass(frozen=True)
class _Question:
    """What all tasks are about: the requests as recorded and as changed, the limit, and settings for what follows."""

    own: Workload
    changed: Workload
    limit: int | None
    then: tuple[int, AllocatorSettings] | None


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


def simulate(
    work: Workload,
    settings: AllocatorSettings,
    limit: int | None = None,
    *,
    ranges: bool = True,
    then: tuple[int, AllocatorSettings] | None = None,
) -> Run:
    """Run a workload under other settings.

    Args:
        work: the requests.
        settings: of the allocator.
        limit: bytes that may be reserved.
        ranges: whether to try several placement orders; expandable segments need none.
        then: an event, and the settings from there on.

    """
    orders = _orders(settings, then, ranges=ranges)
    return _spread([_simulate(work, settings, limit, DRIVERS[at](), then=then) for at in orders])


def _orders(
    settings: AllocatorSettings, then: tuple[int, AllocatorSettings] | None = None, *, ranges: bool = True
) -> range:
    """Give the placement orders to try, as indices into ``DRIVERS``."""
    sure = settings.expandable_segments and (then is None or then[1].expandable_segments)
    return range(len(DRIVERS) if ranges and not sure else 1)


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
    then: tuple[int, AllocatorSettings] | None = None,
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
    again_at: tuple[int, int, int] | None = None
    done = 0
    turn = None if then is None else then[0]
    for what, number, event in work.operations:
        if turn is not None and then is not None and event >= turn:
            sim.change(then[1], Rounding(then[1].roundup_power2_divisions, work.pad))
            turn = None
        if what == MALLOC:
            try:
                addr = sim.malloc(max(work.requested[number], 1), work.stream[number], work.pool[number])
            except SimulatedOutOfMemoryError:
                failure = (done, event, work.requested[number])
                break
            done += 1
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
                again_at = again_at or (done, event, work.requested[number])
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
        again_at=again_at,
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

    if limit is not None:
        # A limit that would have changed the recording does not tell how exact the model is.
        limit = max(limit, int(reserved.max()))
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


def smallest_capacity(
    work: Workload,
    settings: AllocatorSettings,
    grain: int = 2 * 1024**2,
    *,
    then: tuple[int, AllocatorSettings] | None = None,
) -> int:
    """Bisect the least limit, in multiples of ``grain``, under which all requests fit, those that failed too."""
    free = simulate(work, settings, ranges=False, then=then)
    low, high = free.peak_allocated // grain, -(-free.peak_reserved // grain)
    while low < high:
        middle = (low + high) // 2
        run = simulate(work, settings, middle * grain, ranges=False, then=then)
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
    change: Callable[[Workload], Workload] | None = None,
    until: int | None = None,
    guessed: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> WhatIf:
    """Ask what the recorded requests would have reserved under other settings.

    Args:
        snapshot: the file.
        device: ordinal.
        confs: strings as of ``PYTORCH_CUDA_ALLOC_CONF``; without any, ``change`` is tried under the recorded ones.
        limit: bytes that may be reserved; None for no limit.
        sweep: try also the settings that can change anything.
        smallest: find the smallest capacity for each.
        workers: processes to use where there is much to do; a script that asks for several needs the guard that
            ``multiprocessing`` documents.
        change: applied to the requests, but for the run of what was recorded.
        until: event from which on the recorded settings hold again.
        guessed: whether ``limit`` is only the least that it may have been.
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
    tried = [conf for conf in worth_trying(own, limit) if conf not in confs] if sweep else []
    # Of a recording under other settings the defaults are worth trying, and its own once only.
    if tried and snapshot.settings.conf:
        tried = ["", *(conf for conf in tried if conf != snapshot.settings.conf)]
    wanted = list(map(parse_conf, [*confs, *tried]))
    if change is not None and not wanted:
        wanted = [snapshot.settings]
    # cuDNN calls empty_cache() while it tries algorithms, and takes other workspaces each time.
    slack = LARGE_SEGMENT if any(what == EMPTY_CACHE for what, _, _ in own.operations) else 0
    unknown = 0 if own.known else _cached_before(snapshot, device, own)
    question = _Question(
        own=own,
        changed=own if change is None else change(own),
        limit=limit,
        then=None if until is None else (until, snapshot.settings),
    )
    groups = [[_Task(snapshot.settings, at, changed=False) for at in _orders(snapshot.settings)]]
    groups += [[_Task(one, at, changed=True) for at in _orders(one, question.then)] for one in wanted]
    if smallest:
        groups = [[*group, replace(group[0], order=None)] for group in groups]
    replay = snapshot.replay[device]
    tasks = [task for group in groups for task in group]
    with _answers(question, tasks, workers) as answers:
        progress("Running the recorded settings again")
        again = reproduce(snapshot, device, own, limit)
        progress("Packing the same lives")
        least = packed(snapshot, device)
        found = []
        for number, answer in enumerate(answers):
            found.append(answer)
            progress(f"Simulated {number + 1} of {len(tasks)} runs")
    runs = []
    for group in groups:
        mine = [found.pop(0) for _ in group]
        run = _allow(_spread([one for one in mine if isinstance(one, Run)]), slack, slack + unknown, limit)
        runs.append(replace(run, smallest_capacity=next((one for one in mine if isinstance(one, int)), None)))
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
        notes=(
            *((_GUESSED.format(format_bytes(limit)),) if guessed and limit is not None else ()),
            *_notes(snapshot, device, own, again, slack, unknown, limit),
        ),
    )


def briefly(snapshot: Snapshot, device: int, limit: int | None) -> tuple[Reproduction, tuple[Run, ...]] | None:
    """Ask for the settings worth trying, with the best guess of placement only.

    Returns:
        How exact the model is, and the runs, that of the recorded settings first; None for long recordings, and for
        those that began late.

    """
    replay = snapshot.replay[device]
    if not replay.coverage.complete or not 0 < len(replay.events) <= MOST_EVENTS:
        return None
    own = workload(snapshot, device)
    if not any(what == MALLOC for what, _, _ in own.operations):
        return None
    confs = [snapshot.settings, *map(parse_conf, worth_trying(own, limit))]
    runs = tuple(simulate(own, settings, limit, ranges=False) for settings in confs)
    return reproduce(snapshot, device, own, limit), runs


def _cached_before(snapshot: Snapshot, device: int, work: Workload) -> int:
    """Give the bytes that were reserved before a late recording for blocks that no one knows of any more."""
    sim_of = replace(work, operations=[one for one in work.operations if one[2] < 0])
    known = _simulate(sim_of, snapshot.settings, None, DRIVERS[0]()).peak_reserved
    return max(0, int(snapshot.replay[device].curves["reserved"].iloc[0]) - known)


def _allow(run: Run, less: int, more: int, limit: int | None) -> Run:
    """Widen the range by what the requests themselves may differ, but not beyond what is possible."""
    low, high = run.low - less, run.high + more
    if limit is not None:
        high = max(run.peak_reserved, min(high, limit))
    return replace(run, low=max(low, 0), high=high)


@contextmanager
def _answers(question: _Question, tasks: Sequence[_Task], workers: int) -> Iterator[Iterator[Run | int]]:
    """Do tasks in order: in several processes where there is much to do, as soon as the body begins."""
    if min(len(tasks), workers) < 2 or len(tasks) * len(question.own.operations) < 500_000:
        yield (_answer(question, task) for task in tasks)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _take, (question,)) as pool:
        yield pool.map(_answer_taken, tasks)


# What the worker processes are asked about: given once to each, since it is large.
_taken: list[_Question] = []


def _take(question: _Question) -> None:
    _taken.append(question)


def _answer_taken(task: _Task) -> Run | int:
    return _answer(_taken[-1], task)


def _answer(question: _Question, task: _Task) -> Run | int:
    work = question.changed if task.changed else question.own
    then = question.then if task.changed else None
    if task.order is None:
        return smallest_capacity(work, task.settings, then=then)
    return _simulate(work, task.settings, question.limit, DRIVERS[task.order](), then=then)


def _notes(
    snapshot: Snapshot,
    device: int,
    work: Workload,
    again: Reproduction,
    slack: int,
    unknown: int,
    limit: int | None,
) -> list[str]:
    """List what the model cannot know of this recording."""
    notes = []
    if again.mismatches:
        notes.append(
            f"The model reserves other bytes than were recorded after {again.mismatches:,} of {again.allocations:,} "
            "allocations: take its figures with care."
        )
        if limit is None and (snapshot.replay[device].events["action"] == "segment_free").any():
            notes.append("It released its cache for requests that failed at first: give the limit with --capacity.")
    if not work.known:
        notes.append(
            "The recording began late: what was cached before it is unknown"
            + (f"; the ranges allow for the {format_bytes(unknown)} that were reserved then." if unknown else ".")
        )
    if len(snapshot.pools) > 1 and (snapshot.replay[device].events["pool"] < 0).any():
        notes.append(
            "The events do not tell private pools: which requests went there is known only of blocks in segments that "
            "are still there at the end."
        )
    if slack:
        notes.append(
            "The recorded program emptied the cache; as cuDNN does when it tries algorithms, whose workspaces "
            "differ from run to run: the ranges allow for one segment of 20 MiB."
        )
    notes.append("Other processes, libraries and requests that would change by themselves are not in the model.")
    return notes
