"""Training steps, or requests of a server: found in the marks of the recording, or in what repeats."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.phases import stack_traits
from snapana.errors import SnapanaError
from snapana.snapshot.model import ACTION_CODE, Snapshot

IntArray = npt.NDArray[np.int64]

_PROFILER_STEP = re.compile(r"ProfilerStep#\d+$")
# Fewer repetitions show no pattern.
_LEAST = 4
# So alike must neighbouring stretches be to count as repetitions (cosine of how often each stack allocates).
_ALIKE = 0.9
# Longer recordings are looked at from the end: patterns are found long before.
_MOST_ALLOCATIONS = 200_000
_MOST_STEPS = 5_000


@dataclass(frozen=True)
class Steps:
    """Steps of one device.

    Attributes:
        source: what marks them, such as ``Optimizer.step#AdamW.step``; empty where nothing does.
        confidence: how sure that is: 1 for marks, less for what was found in the events.
        table: one row per step: ``index``, ``name``, ``start_event`` (first event of the step), ``end_event``
            (last one), ``peak_allocated``, ``end_allocated``, ``peak_reserved``, ``peak_active`` (bytes),
            ``allocations`` (count), ``allocated_bytes`` (of all of them), ``segments`` (allocated or mapped).

    """

    source: str
    confidence: float
    table: pd.DataFrame

    def __len__(self) -> int:
        return len(self.table)


_COLUMNS = (
    "index",
    "name",
    "start_event",
    "end_event",
    "peak_allocated",
    "end_allocated",
    "peak_reserved",
    "peak_active",
    "allocations",
    "allocated_bytes",
    "segments",
)


def steps(snapshot: Snapshot, device: int, name: str | None = None) -> Steps:
    """Find steps: ``ProfilerStep#N`` ranges, else the ends of ``Optimizer.step#...``, else what repeats.

    Args:
        snapshot: the file.
        device: ordinal.
        name: of an annotation whose ranges are steps; it goes before all others.

    Raises:
        SnapanaError: ``usage.step`` where no annotation has the name.

    """
    marked = _marked(snapshot, device, name)
    if marked is not None:
        return marked
    for find in (_by_optimizer, _by_zero_grad, _by_pattern):
        found = find(snapshot, device)
        if found is not None:
            return found
    return Steps("", 0.0, _table(snapshot, device, [], np.zeros(0, dtype=np.int64), None))


# ---- marks


def _marked(snapshot: Snapshot, device: int, name: str | None) -> Steps | None:
    times = snapshot.replay[device].events["time_us"].to_numpy()
    timed = len(times) > 0 and int(times[0]) >= 0
    marks = snapshot.annotations
    own = marks[marks["device"] == device]
    marks = own if len(own) else marks
    if name is not None:
        chosen = marks[marks["name"] == name]
        if not len(chosen) or not timed:
            known = ", ".join(dict.fromkeys(marks["name"].head(1000))) or "none"
            raise SnapanaError("usage.step", f"No annotation is named {name!r}.", f"The file has: {known[:300]}.")
        return _of_spans(snapshot, device, name, chosen, ranged=True)
    if not timed:
        return None
    profiler = marks[marks["name"].str.match(_PROFILER_STEP)]
    if len(profiler):
        return _of_spans(snapshot, device, "ProfilerStep#", profiler, ranged=True)
    optimizer = marks[marks["name"].str.startswith("Optimizer.step#") & (marks["end_us"] >= 0)]
    if not len(optimizer):
        return None
    # With several optimizers a step ends where the one that steps most often does.
    source = str(optimizer["name"].value_counts(sort=True).index[0])
    return _of_spans(snapshot, device, source, optimizer[optimizer["name"] == source], ranged=False)


def _of_spans(snapshot: Snapshot, device: int, source: str, spans: pd.DataFrame, *, ranged: bool) -> Steps:
    """Turn spans into steps: each ends with its span, or, where its end is missing, before the next begins."""
    times = snapshot.replay[device].events["time_us"].to_numpy()
    spans = spans.assign(at=np.where(spans["start_us"] < 0, spans["end_us"], spans["start_us"]))
    spans = spans.sort_values(["at", "end_us"], kind="stable")
    start, end = spans["start_us"].to_numpy(), spans["end_us"].to_numpy().copy()
    following = np.append(spans["at"].to_numpy()[1:], int(times[-1]) + 1) - 1
    end = np.where(end < 0, following, end)
    inside = end >= int(times[0])
    names = spans["name"].to_numpy()[inside].tolist()
    last = np.searchsorted(times, end[inside], side="right") - 1
    first = None
    if ranged and len(last):
        first = int(np.searchsorted(times, start[inside][0], side="left")) if int(start[inside][0]) >= 0 else 0
    return Steps(source, 1.0, _table(snapshot, device, names, last, first))


# ---- what repeats


def _by_optimizer(snapshot: Snapshot, device: int) -> Steps | None:
    """Take the last allocation of each run within an optimizer's code as the end of a step."""
    return _by_runs(snapshot, device, "optimizer", ("alloc",), "allocations of the optimizer", 0.9)


def _by_zero_grad(snapshot: Snapshot, device: int) -> Steps | None:
    """Take each run of frees within ``zero_grad`` as the end of a step."""
    return _by_runs(snapshot, device, "zero_grad", ("free_requested", "free"), "calls of zero_grad()", 0.8)


def _by_runs(
    snapshot: Snapshot, device: int, trait: str, actions: tuple[str, ...], source: str, confidence: float
) -> Steps | None:
    events = snapshot.replay[device].events
    chosen = np.isin(events["action"].cat.codes.to_numpy(), [ACTION_CODE[action] for action in actions])
    stack = events["stack"].to_numpy()
    values: npt.NDArray[np.bool_] = getattr(stack_traits(snapshot), trait)
    mine = np.flatnonzero(chosen & (stack >= 0) & values[stack])
    if not len(mine):
        return None
    # What else allocates between two runs separates them.
    others = np.flatnonzero((events["action"] == "alloc").to_numpy() & ~((stack >= 0) & values[stack]))
    between = np.searchsorted(others, mine)
    last = np.append(between[1:] != between[:-1], True)
    ends = mine[last]
    if not 2 <= len(ends) <= _MOST_STEPS:
        return None
    return Steps(source, confidence, _table(snapshot, device, None, ends, None))


def _by_pattern(snapshot: Snapshot, device: int) -> Steps | None:
    """Find a stack whose allocations cut the recording into stretches that are alike.

    Most stacks allocate as often as there are steps; of the counts that many stacks share the one with the most alike
    stretches wins. A stretch ends before the allocation that begins the next one.
    """
    events = snapshot.replay[device].events
    allocs = np.flatnonzero((events["action"] == "alloc").to_numpy())[-_MOST_ALLOCATIONS:]
    codes, distinct = pd.factorize(events["stack"].to_numpy()[allocs])
    counts = np.bincount(codes, minlength=len(distinct))
    usable = (counts >= _LEAST) & (counts <= min(_MOST_STEPS, max(len(allocs) // 3, _LEAST)))
    shares = np.bincount(counts[usable], minlength=1) if usable.any() else np.zeros(1, dtype=np.int64)
    best: tuple[float, IntArray] | None = None
    for count in np.argsort(-shares, kind="stable")[:8].tolist():
        if count < _LEAST or not shares[count]:
            continue
        first = int(np.flatnonzero(usable & (counts == count))[0])
        position = np.flatnonzero(codes == first)
        alike = _likeness(codes, len(distinct), position)
        covered = float(position[-1] - position[0]) / max(len(codes), 1)
        score = alike * (0.5 + 0.5 * covered)
        if alike >= _ALIKE and covered >= 0.5 and (best is None or score > best[0] + 0.02):
            best = (score, position)
    if best is None:
        return None
    score, position = best
    # The first stretch begins with the first anchor, the last one ends with the window.
    ends = np.append(allocs[position[1:]] - 1, len(events) - 1)
    return Steps(
        "a repeating pattern of allocations", round(0.7 * score, 2), _table(snapshot, device, None, ends, None)
    )


def _likeness(codes: IntArray, distinct: int, position: IntArray) -> float:
    """Give the median cosine between neighbouring stretches, by how often each stack allocates in them."""
    stretch = np.searchsorted(position, np.arange(len(codes)), side="right") - 1
    inside = (stretch >= 0) & (stretch < len(position) - 1)
    if len(position) < _LEAST or distinct * len(position) > 20_000_000:
        return 0.0
    table = np.zeros((len(position) - 1, distinct), dtype=np.float64)
    np.add.at(table, (stretch[inside], codes[inside]), 1)
    if distinct < 2 or (table > 0).sum(axis=1).mean() < 2:
        # One stack alone always repeats.
        return 0.0
    norm = np.linalg.norm(table, axis=1)
    cosine = (table[1:] * table[:-1]).sum(axis=1) / np.maximum(norm[1:] * norm[:-1], 1e-12)
    return float(np.median(cosine))


# ---- the table


def _table(snapshot: Snapshot, device: int, names: list[str] | None, ends: IntArray, first: int | None) -> pd.DataFrame:
    """Measure the steps that end with the given events; those without events are left out."""
    replay = snapshot.replay[device]
    names = names if names is not None else [f"step {number}" for number in range(len(ends))]
    starts = np.concatenate([[0 if first is None else first], np.maximum.accumulate(ends)[:-1] + 1]).astype(np.int64)
    if len(ends):
        starts[0] = min(int(starts[0]), int(ends[0]))
    curves = {name: replay.curves[name].to_numpy() for name in ("allocated", "active", "reserved")}
    action = replay.events["action"].cat.codes.to_numpy()
    lives = replay.allocations
    born = lives["alloc"].to_numpy()
    size = np.zeros(len(action) + 1, dtype=np.int64)
    np.add.at(size, born[born >= 0] + 1, lives["size"].to_numpy()[born >= 0])
    made = np.isin(action, [ACTION_CODE["segment_alloc"], ACTION_CODE["segment_map"]])
    sums = {
        "allocations": np.concatenate([[0], np.cumsum(action == ACTION_CODE["alloc"])]),
        "bytes": np.cumsum(size),
        "segments": np.concatenate([[0], np.cumsum(made)]),
    }
    spans = zip(names, starts[: len(ends)].tolist(), ends.tolist(), strict=True)
    rows = [
        (
            number,
            name,
            start,
            end,
            # The state before a step's first event belongs to it as well.
            int(curves["allocated"][start : end + 2].max()),
            int(curves["allocated"][end + 1]),
            int(curves["reserved"][start : end + 2].max()),
            int(curves["active"][start : end + 2].max()),
            int(sums["allocations"][end + 1] - sums["allocations"][start]),
            int(sums["bytes"][end + 1] - sums["bytes"][start]),
            int(sums["segments"][end + 1] - sums["segments"][start]),
        )
        for number, (name, start, end) in enumerate(spans)
        if end + 1 >= start
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))
