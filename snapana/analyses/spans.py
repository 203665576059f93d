"""Annotations as spans of events."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]


def spans_of(snapshot: Snapshot, device: int, prefix: str) -> tuple[IntArray, IntArray]:
    """Give first and last event of each span whose name begins with ``prefix``, in order, without overlaps.

    A span without an end lasts to that of the window, one without a start begins with it; the first event of an empty
    span is the one that follows it, the last the one before.
    """
    times = snapshot.replay[device].events["time_us"].to_numpy()
    nothing = np.zeros(0, dtype=np.int64)
    if not len(times) or int(times[0]) < 0:
        return nothing, nothing
    marks = snapshot.annotations
    marks = marks[marks["name"].str.startswith(prefix)]
    start, end = marks["start_us"].to_numpy(), marks["end_us"].to_numpy()
    inside = (end < 0) | (end >= int(times[0]))
    start, end = start[inside], end[inside]
    first = np.where(start < 0, 0, np.searchsorted(times, start, side="left"))
    last = np.where(end < 0, len(times) - 1, np.searchsorted(times, end, side="right") - 1)
    order = np.lexsort((last, first))
    first, last = first[order], last[order]
    if len(first) > 1:
        # Of spans that overlap, as nested ones do, the outer one counts.
        reach = np.maximum.accumulate(last)
        outer = np.ones(len(first), dtype=bool)
        outer[1:] = first[1:] > reach[:-1]
        group = np.cumsum(outer) - 1
        ends = np.zeros(int(group[-1]) + 1, dtype=np.int64)
        np.maximum.at(ends, group, last)
        first, last = first[outer], ends
    return first.astype(np.int64), last.astype(np.int64)


def innermost(snapshot: Snapshot, device: int) -> tuple[IntArray, list[str]]:
    """Give each event the index of the innermost annotation around it, -1 for none, and the names by index."""
    times = snapshot.replay[device].events["time_us"].to_numpy()
    found = np.full(len(times), -1, dtype=np.int64)
    marks = snapshot.annotations
    names = list(dict.fromkeys(marks["name"]))
    if not len(times) or int(times[0]) < 0 or not len(marks):
        return found, names
    index = {name: number for number, name in enumerate(names)}
    start = np.where(marks["start_us"] < 0, int(times[0]), marks["start_us"])
    end = np.where(marks["end_us"] < 0, int(times[-1]), marks["end_us"])
    # Outer spans first, so that inner ones are written over them.
    order = np.lexsort((-end, start))
    low = np.searchsorted(times, start[order], side="left")
    high = np.searchsorted(times, end[order], side="right")
    codes = [index[name] for name in marks["name"].to_numpy()[order]]
    for first, last, code in zip(low.tolist(), high.tolist(), codes, strict=True):
        found[first:last] = code
    return found, names
