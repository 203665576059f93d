"""How much other micro-batches need, which is the largest that fits, and how to reach a larger batch with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.settings import AllocatorSettings
from snapana.analyses.categories import ACTIVATIONS, GRADIENTS, INPUTS, categorise
from snapana.analyses.phases import checkpoints, stack_traits
from snapana.analyses.rules import CATEGORIES
from snapana.analyses.scaling import Scaling, guessed, measured
from snapana.analyses.sites import site_codes, site_list
from snapana.analyses.steps import Steps, steps
from snapana.analyses.whatif import FAILED, FREE, MALLOC, Workload, simulate, workload
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]

# No one trains with larger ones; the search for the largest that fits stops here.
MOST = 2**20
# Steps whose peaks differ by more had other batches.
_ALIKE = 0.05
# Blocks keep what is not worth splitting off: no figure is surer than this.
_LEAST_MISS = 0.005


@dataclass(frozen=True)
class Point:
    """What one micro-batch needs.

    Attributes:
        micro_batch: elements.
        accumulation_steps: backward passes for each step of the optimizer.
        peak_allocated: bytes.
        low: the least that it may be.
        high: the most.
        peak_reserved: bytes, under the settings of the plan.
        reserved_low: the least that it may be.
        reserved_high: the most.

    """

    micro_batch: int
    accumulation_steps: int
    peak_allocated: int
    low: int
    high: int
    peak_reserved: int
    reserved_low: int
    reserved_high: int


@dataclass(frozen=True)
class Recorded:
    """A recording that the plan was made from.

    Attributes:
        name: of the file.
        batch: its micro-batch.
        peak_allocated: bytes, recorded.
        needed: the same, with the requests that failed.
        predicted: what the plan says for this batch.

    """

    name: str
    batch: int
    peak_allocated: int
    needed: int
    predicted: int


@dataclass(frozen=True)
class Plan:
    """Answers for one device.

    Attributes:
        device: ordinal.
        conf: settings that the allocator is simulated with.
        capacity: the most that PyTorch may reserve, bytes; None if not told.
        margin: share of it that is left free.
        recorded: the recordings, that whose allocations are scaled first.
        points: micro-batches that were asked for, ascending.
        largest: largest micro-batch that fits, None without a capacity; 0 where not even one element does.
        recipe: how to reach the effective batch; None where nothing fits.
        sites: one row per line of code alive at the recorded peak: ``site``, ``category``, ``constant_bytes``,
            ``per_sample_bytes`` (requested, floats), ``requested_bytes``; they sum to what is requested then.
        checkpointing: the same points with activation checkpointing, where the other recording shows it.
        largest_checkpointing: as ``largest``, with checkpointing.
        assumptions: what the plan takes for granted.

    """

    device: int
    conf: str
    capacity: int | None
    margin: float
    recorded: tuple[Recorded, ...]
    points: tuple[Point, ...]
    largest: int | None
    recipe: Point | None
    sites: pd.DataFrame
    checkpointing: tuple[Point, ...]
    largest_checkpointing: int | None
    assumptions: tuple[str, ...]

    @property
    def frame(self) -> pd.DataFrame:
        """The points as a frame, one row each: the columns are the attributes of ``Point``."""
        return pd.DataFrame([vars(point) for point in self.points])


@dataclass(frozen=True)
class _Model:
    """Requests of a recording, which can be had at any batch."""

    work: Workload
    scaling: Scaling
    settings: AllocatorSettings

    def at(self, batch: int, bound: str) -> Workload:
        return replace(self.work, requested=self.scaling.at(batch, bound).tolist())

    def fits(self, batch: int, limit: int) -> bool:
        return simulate(self.at(batch, "most"), self.settings, limit, ranges=False).failed_at is None


def plan(
    snapshot: Snapshot,
    device: int,
    batch: int,
    *,
    other: Snapshot | None = None,
    other_batch: int | None = None,
    at: Sequence[int] = (),
    effective_batch: int | None = None,
    capacity: int | None = None,
    margin: float = 0.05,
    settings: AllocatorSettings | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Say what other micro-batches would need.

    The requests of a recording are scaled, each by what is known of it, and given to the simulated allocator.

    Args:
        snapshot: the recording.
        device: ordinal.
        batch: its micro-batch.
        other: another recording of the same program, at another batch or with activation checkpointing.
        other_batch: its micro-batch.
        at: micro-batches to predict; by default half, one, two and four times the recorded one.
        effective_batch: what the optimizer shall see; by default the largest of ``at`` and the recorded ones.
        capacity: the most that PyTorch may reserve, bytes.
        margin: share of ``capacity`` to be left free.
        settings: of the allocator; by default the recorded ones.
        progress: told what is being done.

    Raises:
        SnapanaError: ``plan.unlike`` where two recordings are not of one program, ``usage.plan`` where what is asked
            contradicts itself.

    """
    recordings = [(snapshot, batch)]
    if other is not None and other_batch is not None:
        recordings.append((other, other_batch))
    for one, size in recordings:
        if size < 1 or device not in one.devices or not (one.replay[device].allocations["alloc"] >= 0).any():
            raise SnapanaError("usage.plan", f"{one.info.name}: no allocations of device {device} were recorded.")
    settings = settings or snapshot.settings
    recordings.sort(key=lambda one: -one[1])
    by_checkpointing = len(recordings) == 2 and recordings[0][1] == recordings[1][1]
    progress("Fitting what grows with the batch")
    alternative: _Model | None = None
    if by_checkpointing:
        recordings.sort(key=lambda one: checkpoints(one[0]))
        if checkpoints(recordings[0][0]) == checkpoints(recordings[1][0]):
            raise SnapanaError(
                "usage.plan",
                f"Both recordings are of batch {batch}, and neither or both use activation checkpointing.",
                "Give recordings of two batch sizes, or one with and one without checkpointing.",
            )
        alternative = _models(recordings[1][0], device, guessed(recordings[1][0], device, batch), settings)[0]
    base, base_batch = recordings[0]
    if len(recordings) == 2 and not by_checkpointing and checkpoints(base) != checkpoints(recordings[1][0]):
        raise SnapanaError(
            "plan.unlike",
            "Only one of the recordings uses activation checkpointing, and their batches differ.",
            "Give both at one batch, or both with or both without checkpointing.",
        )
    if len(recordings) == 2 and not by_checkpointing:
        scaling = measured(base, base_batch, *recordings[1], device)
    else:
        scaling = guessed(base, device, base_batch)
    once, accumulating = _models(base, device, scaling, settings)
    sizes = sorted({*at}) or sorted({max(batch // 2, 1), *(size for _, size in recordings), 2 * batch, 4 * batch})
    limit = None if capacity is None else int(capacity * (1 - margin))
    recorded = tuple(
        Recorded(
            one.info.name,
            size,
            int(one.replay[device].curves["allocated"].max()),
            _needed(one, device),
            _point(alternative if alternative and one is not base else once, size, 1).peak_allocated,
        )
        for one, size in recordings
    )
    # What the model misses of what was recorded it may miss elsewhere.
    missed = max(_LEAST_MISS, *(abs(one.predicted / one.needed - 1) for one in recorded))
    points = []
    for size in sizes:
        progress(f"Simulating micro-batch {size}")
        points.append(_allow(_point(once, size, 1), missed))
    wanted = effective_batch or max(*sizes, *(size for _, size in recordings))
    largest = largest_checkpointing = recipe = None
    if limit is not None:
        progress("Looking for the largest micro-batch that fits")
        largest = _largest(once, limit)
        largest_checkpointing = _largest(alternative, limit) if alternative else None
    micro = _micro_batch(once, accumulating, wanted, limit, base_batch)
    if micro is not None:
        recipe = _allow(_point(once if micro == wanted else accumulating, micro, wanted // micro), missed)
    return Plan(
        device=device,
        conf=settings.conf,
        capacity=capacity,
        margin=margin,
        recorded=recorded,
        points=tuple(points),
        largest=largest,
        recipe=recipe,
        sites=_sites(base, device, scaling),
        checkpointing=tuple(_allow(_point(alternative, size, 1), missed) for size in sizes) if alternative else (),
        largest_checkpointing=largest_checkpointing,
        assumptions=tuple(_assumptions(base, device, scaling)),
    )


def _point(model: _Model, batch: int, steps_of: int) -> Point:
    best = simulate(model.at(batch, "best"), model.settings)
    if best.failed_at is not None:
        raise SnapanaError("usage.plan", f"A micro-batch of {batch:,} would need more than any card has.")
    least, most = (simulate(model.at(batch, bound), model.settings, ranges=False) for bound in ("least", "most"))
    return Point(
        micro_batch=batch,
        accumulation_steps=steps_of,
        peak_allocated=best.peak_allocated,
        low=min(least.peak_allocated, best.allocated_low),
        high=max(most.peak_allocated, best.allocated_high),
        peak_reserved=best.peak_reserved,
        reserved_low=min(least.peak_reserved, best.low),
        reserved_high=max(most.peak_reserved, best.high),
    )


def _needed(snapshot: Snapshot, device: int) -> int:
    """Give the highest that was allocated, or would have been if no request had failed."""
    replay = snapshot.replay[device]
    allocated = replay.curves["allocated"].to_numpy()
    failed = np.flatnonzero((replay.events["action"] == "oom").to_numpy())
    asked = replay.events["size"].to_numpy()[failed]
    return max(int(allocated.max()), int((allocated[failed] + asked).max(initial=0)), 1)


def _allow(point: Point, share: float) -> Point:
    """Widen the ranges by a share."""
    return replace(
        point,
        low=max(min(point.low, round(point.peak_allocated * (1 - share))), 0),
        high=max(point.high, round(point.peak_allocated * (1 + share))),
        reserved_low=max(min(point.reserved_low, round(point.peak_reserved * (1 - share))), 0),
        reserved_high=max(point.reserved_high, round(point.peak_reserved * (1 + share))),
    )


def _largest(model: _Model, limit: int) -> int:
    """Bisect the largest micro-batch that fits; 0 if none does."""
    low, high = 0, 1
    while high <= MOST and model.fits(high, limit):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if model.fits(middle, limit) else (low, middle)
    return min(low, MOST)


def _micro_batch(once: _Model, accumulating: _Model, wanted: int, limit: int | None, recorded: int) -> int | None:
    """Choose the largest divisor of the wanted batch that fits; the recorded one counts where no limit is known."""
    divisors = [size for size in range(wanted, 0, -1) if wanted % size == 0]
    if limit is None:
        return next(size for size in divisors if size <= recorded)
    for size in divisors:
        if (once if size == wanted else accumulating).fits(size, limit):
            return size
    return None


# ---- requests


def _models(snapshot: Snapshot, device: int, scaling: Scaling, settings: AllocatorSettings) -> tuple[_Model, _Model]:
    """Give the requests as recorded, and as they would be if gradients were accumulated."""
    work = _without_failures(workload(snapshot, device))
    failed = np.asarray(work.requested[len(scaling.requested) :], dtype=np.int64)
    share = np.where(failed % scaling.batch == 0, failed / scaling.batch, 0.0)
    scaling = _extended(scaling, failed, (share, np.zeros(len(failed)), share))
    accumulated, copied = with_accumulation(snapshot, device, work)
    slopes = (scaling.per_sample, scaling.low_per_sample, scaling.high_per_sample)
    longer = _extended(
        scaling,
        scaling.requested[copied],
        (slopes[0][copied], slopes[1][copied], slopes[2][copied]),
    )
    return _Model(work, scaling, settings), _Model(accumulated, longer, settings)


def _extended(scaling: Scaling, requested: IntArray, slopes: tuple[npt.NDArray[np.float64], ...]) -> Scaling:
    best, low, high = slopes
    return replace(
        scaling,
        requested=np.concatenate([scaling.requested, requested]),
        per_sample=np.concatenate([scaling.per_sample, best]),
        low_per_sample=np.concatenate([scaling.low_per_sample, low]),
        high_per_sample=np.concatenate([scaling.high_per_sample, high]),
    )


def _without_failures(work: Workload) -> Workload:
    """Let requests that failed succeed, and be freed at once."""
    operations = []
    for what, number, event in work.operations:
        if what == FAILED:
            operations += [(MALLOC, number, event), (FREE, number, event)]
        else:
            operations.append((what, number, event))
    return replace(work, operations=operations)


def with_accumulation(snapshot: Snapshot, device: int, work: Workload) -> tuple[Workload, IntArray]:
    """Change the requests of a recording to those of gradient accumulation.

    From the second micro-batch of a step on the gradients are there before the forward pass, and what a backward pass
    makes is added to them and freed at once (``torch/csrc/autograd/functions/accumulate_grad.h``): each step becomes
    such a micro-batch. A recording that accumulates already is left as it is.

    Returns:
        The requests, and for each allocation that was added the number of that whose size it has.

    """
    lives = snapshot.replay[device].allocations
    born, freed = lives["alloc"].to_numpy(), lives["free_requested"].to_numpy()
    codes = categorise(snapshot, device)
    forward = stack_traits(snapshot).module[lives["stack"].to_numpy()]
    gradients = np.flatnonzero((codes == GRADIENTS) & (born >= 0))
    activations = born[np.isin(codes, [ACTIVATIONS, INPUTS]) & (born >= 0)]
    copies: list[int] = []
    copy_of: dict[int, int] = {}
    begin: dict[int, list[int]] = {}
    table = steps(snapshot, device).table
    for start, end in table[["start_event", "end_event"]].to_numpy(dtype=np.int64).tolist():
        own = gradients[(born[gradients] >= start) & (born[gradients] <= end)]
        inside = activations[(activations >= start) & (activations <= end)]
        if not len(own) or not len(inside) or bool((forward & (born > born[own].max()) & (born <= end)).any()):
            continue
        earlier = gradients[(born[gradients] < start) & (freed[gradients] >= start)]
        cleared = freed[earlier][freed[earlier] < born[own].min()]
        at = max(int(inside.min()), int(cleared.max(initial=-1)) + 1)
        for number in own.tolist():
            copy_of[number] = len(work.requested) + len(copies)
            copies.append(number)
            begin.setdefault(at, []).append(copy_of[number])
    operations: list[tuple[int, int, int]] = []
    waiting = sorted(begin)
    made: int | None = None
    for what, number, event in work.operations:
        while waiting and waiting[0] <= event:
            operations += [(MALLOC, copy, waiting[0]) for copy in begin[waiting[0]]]
            waiting.pop(0)
        added = copy_of.get(number) if what != MALLOC else None
        operations.append((what, number if added is None else added, event))
        if made is not None:
            operations.append((FREE, made, event))
        made = number if what == MALLOC and number in copy_of else None
    if made is not None:
        operations.append((FREE, made, operations[-1][2]))
    changed = replace(
        work,
        operations=operations,
        requested=[*work.requested, *(work.requested[number] for number in copies)],
        stream=[*work.stream, *(work.stream[number] for number in copies)],
        pool=[*work.pool, *(work.pool[number] for number in copies)],
    )
    return changed, np.asarray(copies, dtype=np.int64)


# ---- what scales, and what is taken for granted


def _sites(snapshot: Snapshot, device: int, scaling: Scaling) -> pd.DataFrame:
    """Say for each line of code alive at the recorded peak what of it grows."""
    replay = snapshot.replay[device]
    live = replay.live(replay.peak_event())
    rows = live.index.to_numpy()
    grows = scaling.per_sample[rows]
    requested = scaling.requested[rows].astype(np.float64)
    names = site_list(snapshot)
    table = pd.DataFrame(
        {
            "site": [names[code].label for code in site_codes(snapshot, live).tolist()],
            "category": [CATEGORIES[code] for code in categorise(snapshot, device)[rows].tolist()],
            "constant_bytes": requested - grows * scaling.batch,
            "per_sample_bytes": grows,
            "requested_bytes": requested,
        }
    )
    sums = table.groupby(["site", "category"], as_index=False).sum()
    return sums.sort_values(["requested_bytes", "site"], ascending=[False, True], kind="stable").reset_index(drop=True)


def _assumptions(snapshot: Snapshot, device: int, scaling: Scaling) -> list[str]:
    found = steps(snapshot, device)
    said = []
    if scaling.paired is None:
        said.append(
            "From one recording: activations and inputs grow in proportion to the batch where their bytes are a "
            "multiple of it, everything else stays. A second recording at another batch would measure it."
        )
    else:
        said.append(
            f"{scaling.paired:,} of {len(scaling.requested):,} allocations were found in both recordings and grow in a "
            "straight line between and beyond the two; the others stay."
        )
    said.append("The same kernels: libraries may choose others, with other workspaces, for other sizes.")
    said.append("The same lengths, resolution and precision; gradients are accumulated in place.")
    said.append("Steps with another batch than the recorded one last longer or shorter: time is not in the plan.")
    said += _warnings(snapshot, device, found)
    return said


def _warnings(snapshot: Snapshot, device: int, found: Steps) -> list[str]:
    replay = snapshot.replay[device]
    said = []
    if checkpoints(snapshot):
        said.append("Activation checkpointing is in use already: what it saves is not in here any more.")
    if not len(found):
        said.append("No steps are known: what is kept from one to the next may be missing.")
    else:
        peaks = found.table["peak_allocated"].to_numpy()[1:]
        if len(peaks) and peaks.max() > (1 + _ALIKE) * peaks.min():
            said.append("The recorded steps differ: the batch must be that of the step with the highest peak.")
    if not replay.coverage.complete:
        said.append("The recording began late: what was there before it stays as it is.")
    if (replay.events["action"] == "oom").any():
        said.append("The recording ends in a failure: what would have come after it is not in the plan.")
    return said
