"""A folder of recordings as one job: its ranks in one table, and what the odd ones out do that others do not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from snapana.analyses.compare import Comparison, compare, fullest_device
from snapana.analyses.overview import Overview, overview
from snapana.errors import SnapanaError
from snapana.loading import load_any
from snapana.plain import plain_text
from snapana.redact import Redactor
from snapana.trace.model import Timeline, Trace

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_PACKED = r"(?:\.(?:gz|xz|zst|zip))?$"
# The first kind that a folder has is read: a job often has traces beside its snapshots.
_KINDS = (re.compile(r"\.(?:pickle|pkl)" + _PACKED, re.IGNORECASE), re.compile(r"\.json" + _PACKED, re.IGNORECASE))
# The first of these that a name has says its rank.
_RANKS = tuple(
    re.compile(word + r"[-_.=]?(\d+)", re.IGNORECASE) for word in ("rank", "worker", "proc", "gpu", "device")
)
# Ranks that differ by more than this share of the middle one are odd; ordinary ones differ by less.
_ODD = 0.05
_MOST_ODD = 4
# Less is read faster than processes start.
_PARALLEL_BYTES = 20 * 1024**2
_CURVE_POINTS = 800


@dataclass(frozen=True)
class Rank:
    """One recording of a job.

    Attributes:
        rank: of the process; None where neither name nor content tells.
        name: of the file.
        path: of the file.
        error: why it could not be read; all figures are None or 0 then.
        code: of that error.
        kind: ``snapshot`` or ``trace``.
        device: ordinal of its fullest device.
        events: of that device.
        complete: whether the whole run is in the window.
        peak_allocated: bytes.
        end_allocated: bytes.
        peak_reserved: bytes, None where not known.
        leak: bytes kept each step, None where it could not be judged.
        steps: found.
        out_of_memory: failed allocations.
        curve: places in the window (0 to 1) and bytes allocated there, thinned.

    """

    rank: int | None
    name: str
    path: str
    error: str = ""
    code: str = ""
    kind: str = ""
    device: int = 0
    events: int = 0
    complete: bool = False
    peak_allocated: int = 0
    end_allocated: int = 0
    peak_reserved: int | None = None
    leak: float | None = None
    steps: int = 0
    out_of_memory: int = 0
    curve: tuple[FloatArray, IntArray] | None = None


@dataclass(frozen=True)
class Outlier:
    """A rank that differs, held against one in the middle.

    Attributes:
        rank: the odd one.
        reasons: what is odd about it.
        compared: the odd one against the typical one.

    """

    rank: Rank
    reasons: tuple[str, ...]
    compared: Comparison


@dataclass(frozen=True)
class Job:
    """All ranks of a folder.

    Attributes:
        name: of the folder.
        ranks: by rank.
        typical: that in the middle; None where none could be read.
        outliers: the odd ones, the highest peak first.
        more_outliers: how many more there are.
        redacted: how many different things of each kind were replaced; None where nothing was to be.

    """

    name: str
    ranks: tuple[Rank, ...]
    typical: Rank | None
    outliers: tuple[Outlier, ...]
    more_outliers: int
    redacted: dict[str, int] | None = None


def job_files(folder: Path) -> list[Path]:
    """List the recordings of a folder: its snapshots, else its traces.

    Raises:
        SnapanaError: ``input.no_recordings`` for a folder without any.

    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    for kind in _KINDS:
        found = [path for path in files if kind.search(path.name)]
        if found:
            return found
    raise SnapanaError(
        "input.no_recordings",
        f"The folder {folder} holds no snapshots (.pickle) or traces (.json), packed or not.",
        "Name a file, or the folder that has one for each rank.",
    )


def read_job(
    folder: Path,
    *,
    max_input: int,
    step: str | None = None,
    redactor: Redactor | None = None,
    workers: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> Job:
    """Read all recordings of a folder, and compare the odd ones with one in the middle.

    Args:
        folder: of one job.
        max_input: most bytes of one file after decompression.
        step: annotation whose ranges are steps.
        redactor: replaces names.
        workers: processes to read with, where there is much to read.
        progress: told what is being done.

    Raises:
        SnapanaError: ``input.no_recordings``; that of the first file where none can be read.

    """
    files = job_files(folder)
    tasks = [(str(path), max_input, step) for path in files]
    ranks = []
    with _pool(tasks, workers) as results:
        for number, rank in enumerate(results):
            ranks.append(rank)
            progress(f"Read {number + 1} of {len(files)} ranks")
    ranks = sorted(_numbered(ranks), key=lambda one: (one.rank is None, one.rank, one.name))
    if redactor is not None:
        ranks = [replace(one, name=f"file {at + 1}", error=one.code) for at, one in enumerate(ranks)]
    read = [one for one in ranks if not one.error]
    if not read:
        raise SnapanaError("input.no_recordings", f"No file of {folder} can be read: {ranks[0].name}: {ranks[0].error}")
    recorded = [one for one in read if one.events] or read
    typical = _typical(recorded)
    odd = sorted(
        ((one, reasons) for one in recorded if one is not typical and (reasons := _oddities(one, recorded))),
        key=lambda one: -one[0].peak_allocated,
    )
    outliers = []
    if odd:
        progress("Comparing the odd ranks")
        chosen = odd[:_MOST_ODD]
        loaded = _loaded([typical, *(one for one, _ in chosen)], max_input, redactor)
        base = _analysed(loaded[0], step)
        for (one, reasons), theirs in zip(chosen, loaded[1:], strict=True):
            found = compare(base, _analysed(theirs, step), (_called(typical), _called(one)))
            outliers.append(Outlier(one, reasons, found))
    name = folder.resolve().name if redactor is None else "job"
    return Job(
        name,
        tuple(ranks),
        typical,
        tuple(outliers),
        max(0, len(odd) - _MOST_ODD),
        None if redactor is None else redactor.counts,
    )


def _called(rank: Rank) -> str:
    return rank.name if rank.rank is None else f"rank {rank.rank}"


_Task = tuple[str, int, str | None]


@contextmanager
def _pool(tasks: Sequence[_Task], workers: int) -> Iterator[Iterator[Rank]]:
    if min(workers, len(tasks)) < 2 or sum(Path(path).stat().st_size for path, _, _ in tasks) < _PARALLEL_BYTES:
        yield map(_read, tasks)
        return
    with ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn")) as pool:
        yield pool.map(_read, tasks)


def _loaded(ranks: Sequence[Rank], max_input: int, redactor: Redactor | None) -> list[Any]:
    """Load ranks; all of them teach the redactor names before the first is redacted."""
    found = [load_any(one.path, max_input=max_input) for one in ranks]
    if redactor is None:
        return found
    for one in found:
        redactor.learn_from(one)
    return [redactor.model(one) for one in found]


def _analysed(loaded: Any, step: str | None) -> Overview:
    if isinstance(loaded, Timeline):
        raise SnapanaError("input.timeline", "It is an exported memory timeline, which knows no lines of code.")
    try:
        return _overview(loaded, step)
    except SnapanaError as error:
        if error.code != "usage.step":
            raise
        return _overview(loaded, None)


def _overview(loaded: Any, step: str | None) -> Overview:
    if isinstance(loaded, Trace):
        from snapana.analyses.traces import trace_overview

        return trace_overview(loaded, step=step)
    return overview(loaded, step=step)


def _read(task: _Task) -> Rank:
    """Read one file and keep its figures; what is wrong with a file is one of them."""
    path, max_input, step = task
    name = plain_text(Path(path).name)
    named = next((found for pattern in _RANKS if (found := pattern.findall(name))), [])
    rank = int(named[-1]) if named else None
    try:
        results = _analysed(load_any(path, max_input=max_input), step)
        device = fullest_device(results)
    except SnapanaError as error:
        return Rank(rank, name, path, error=error.message, code=error.code)
    if rank is None and results.trace is not None:
        rank = results.trace.rank
    replay = results.snapshot.replay[device.device]
    return Rank(
        rank=rank,
        name=name,
        path=path,
        kind=results.snapshot.info.kind,
        device=device.device,
        events=device.coverage.events,
        complete=device.coverage.complete,
        peak_allocated=device.peak.allocated,
        end_allocated=device.end.allocated,
        peak_reserved=device.peak_reserved,
        leak=float(device.leaks.table["bytes_per_step"].sum()) if device.leaks.judged else None,
        steps=len(device.steps),
        out_of_memory=device.oom_events,
        curve=_thinned(np.maximum(replay.curves["allocated"].to_numpy(), 0)),
    )


def _thinned(values: IntArray) -> tuple[FloatArray, IntArray] | None:
    """Keep the highest value of each stretch, the first and the last."""
    if len(values) < 2:
        return None
    edges = np.unique(np.linspace(0, len(values), _CURVE_POINTS + 1).astype(np.int64))
    highest = [int(low) + int(values[low:high].argmax()) for low, high in pairwise(edges)]
    at = np.union1d(highest, [0, len(values) - 1]).astype(np.int64)
    return at / (len(values) - 1), values[at]


def _numbered(ranks: list[Rank]) -> list[Rank]:
    """Forget ranks that several files claim: their names say something else."""
    numbers = [one.rank for one in ranks if one.rank is not None]
    if len(set(numbers)) == len(numbers):
        return ranks
    return [replace(one, rank=None) for one in ranks]


def _typical(ranks: Sequence[Rank]) -> Rank:
    """Give the rank whose peak is in the middle; of equal ones the first."""
    middle = float(np.median([one.peak_allocated for one in ranks]))
    return min(ranks, key=lambda one: abs(one.peak_allocated - middle))


def _oddities(one: Rank, ranks: Sequence[Rank]) -> tuple[str, ...]:
    others = [rank for rank in ranks if rank is not one]
    found = []
    for what, value, theirs in (
        ("peak", one.peak_allocated, [rank.peak_allocated for rank in others]),
        ("end", one.end_allocated, [rank.end_allocated for rank in others]),
        ("reserved", one.peak_reserved, [rank.peak_reserved for rank in others]),
    ):
        known = [each for each in theirs if each is not None]
        if value is None or not known:
            continue
        middle = float(np.median(known))
        spread = float(np.median(np.abs(np.array(known) - middle)))
        if abs(value - middle) > max(_ODD * middle, 4 * spread):
            found.append(f"{what} {value / middle - 1:+.0%}" if middle else what)
    if one.leak and not any(rank.leak for rank in others if rank.leak is not None):
        found.append("leak")
    if one.out_of_memory and not any(rank.out_of_memory for rank in others):
        found.append("out of memory")
    return tuple(found)
