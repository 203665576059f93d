"""Reads what the deprecated ``export_memory_timeline`` wrote.

Formats: torch/profiler/_memory_profiler.py (``export_memory_timeline``, ``export_memory_timeline_raw``).
"""

from __future__ import annotations

import msgspec
import numpy as np

from snapana.errors import SnapanaError
from snapana.snapshot.model import InputInfo
from snapana.trace.model import TIMELINE_CATEGORIES, IntArray, Timeline

_PREEXISTING, _CREATE, _CHANGE, _DESTROY = 1, 2, 3, 4


def read_timeline(payload: bytes, info: InputInfo) -> Timeline:
    """Decode ``[times, sizes]``, or the raw list of ``[ns, action, bytes, category]``.

    Raises:
        SnapanaError: ``input.corrupt`` where rows are not what the profiler writes.

    """
    try:
        document = msgspec.json.decode(payload)
        if len(document) == 2 and document[1] and isinstance(document[1][0], list) and len(document[1][0]) == 9:
            times, sizes = (np.array(part, dtype=np.int64) for part in document)
            if sizes.shape != (len(times), 9):
                raise ValueError("times and sizes differ in number")
            # The first column is always 0.
            return Timeline(info, times, sizes[:, 1:])
        return _from_raw(np.array(document, dtype=np.int64).reshape(-1, 4), info)
    except (msgspec.DecodeError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise SnapanaError(
            "input.corrupt",
            f"{info.name} looks like a memory timeline, but its rows are not ({error}).",
            "Export it again.",
        ) from None


def _from_raw(rows: IntArray, info: InputInfo) -> Timeline:
    """Sum the changes; what existed before has no time of its own and belongs to the first."""
    time, category = rows[:, 0].copy(), rows[:, 3]
    if not ((category >= 0) & (category < len(TIMELINE_CATEGORIES))).all():
        raise ValueError("an unknown category")
    later = time >= 0
    time[~later] = int(time[later].min()) if later.any() else 0
    order = np.argsort(time, kind="stable")
    delta = np.zeros((len(rows), len(TIMELINE_CATEGORIES)), dtype=np.int64)
    delta[np.arange(len(rows)), category[order]] = rows[order, 2]
    return Timeline(info, time[order] // 1000, np.cumsum(delta, axis=0))
