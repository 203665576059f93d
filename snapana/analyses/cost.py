"""What memory management costs in time: the runtime's calls that get and give back memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from snapana.analyses.steps import Steps
from snapana.trace.model import IntArray, Trace
from snapana.trace.nesting import Nesting

_EMPTY_CACHE = "empty_cache"


@dataclass(frozen=True)
class Cost:
    """Time in memory calls.

    Attributes:
        calls: one row per call's name: ``name``, ``count``, ``us`` (summed).
        steps: one row per steady step, from the end of one to the end of the next, after warm-up: ``index``,
            ``us`` (its length), ``allocs`` and ``frees`` (calls), ``call_us`` (summed calls), ``share`` (of the step),
            ``reserved_up`` and ``reserved_down`` (bytes by which reserved rose and fell).
        share: mean of ``share``; None without steps.
        emptied: calls of ``empty_cache()`` within the trace.
        emptied_at: the line that calls it most; empty where Python functions are not recorded.

    """

    calls: pd.DataFrame
    steps: pd.DataFrame
    share: float | None
    emptied: int
    emptied_at: str


def cost(trace: Trace, device: int, steps: Steps, curves: pd.DataFrame, events: pd.DataFrame) -> Cost:
    """Sum the calls, by name and by step.

    Args:
        trace: the trace.
        device: ordinal; calls are of the whole process.
        steps: of the device.
        curves: of the device, for what was reserved.
        events: of the device, for their times.

    """
    spans = trace.runtime
    names = np.array([spans.names[code] for code in spans.name.tolist()], dtype=object)
    table = pd.DataFrame({"name": names, "us": spans.end - spans.start, "start": spans.start})
    calls = table.groupby("name", as_index=False).agg(count=("us", "count"), us=("us", "sum"))
    calls = calls.sort_values("us", ascending=False, kind="stable", ignore_index=True)
    by_step = _by_step(trace, table, steps, curves, events)
    emptied, line = _empty_cache(trace)
    return Cost(calls, by_step, float(by_step["share"].mean()) if len(by_step) else None, emptied, line)


def _by_step(
    trace: Trace, calls: pd.DataFrame, steps: Steps, curves: pd.DataFrame, events: pd.DataFrame
) -> pd.DataFrame:
    columns = ["index", "us", "allocs", "frees", "call_us", "share", "reserved_up", "reserved_down"]
    ends = steps.table["end_event"].to_numpy(dtype=np.int64)
    if len(ends) < 3 or not len(calls):
        return pd.DataFrame(columns=columns)
    marks = _ends_in_time(trace, steps, events, ends)
    delta = np.diff(curves["reserved"].to_numpy())
    rows = []
    # The first steps make what later ones reuse.
    for number in range(2 if len(ends) > 4 else 1, len(ends)):
        low, high = marks[number - 1], marks[number]
        own = calls[(calls["start"] > low) & (calls["start"] <= high)]
        allocs = own["name"].str.contains(r"Malloc|MemCreate|MemMap", regex=True)
        frees = own["name"].str.contains(r"Free|MemUnmap|MemRelease", regex=True)
        change = delta[int(ends[number - 1]) + 1 : int(ends[number]) + 1]
        length = float(high - low)
        rows.append(
            (
                number,
                length,
                int(allocs.sum()),
                int(frees.sum()),
                float(own["us"].sum()),
                float(own["us"].sum()) / length if length > 0 else 0.0,
                int(change[change > 0].sum()),
                int(-change[change < 0].sum()),
            )
        )
    return pd.DataFrame(rows, columns=columns)


def _ends_in_time(trace: Trace, steps: Steps, events: pd.DataFrame, ends: IntArray) -> list[float]:
    """Give the time of each step's end: of its mark where it has one, else of its last event."""
    spans = trace.annotations
    marked = np.array([spans.names[code].startswith(steps.source) for code in spans.name.tolist()], dtype=bool)
    if steps.source and int(marked.sum()) == len(ends):
        return sorted(spans.end[marked].tolist())
    times = events["time_us"].to_numpy()[ends] - trace.base_us
    return [float(time) for time in times.tolist()]


def _empty_cache(trace: Trace) -> tuple[int, str]:
    """Find calls of ``empty_cache()`` among the Python functions, and the line around most of them."""
    python = trace.python
    wanted = [code for code, name in enumerate(python.names) if name.endswith(f": {_EMPTY_CACHE}")]
    found = np.flatnonzero(np.isin(python.name, wanted))
    if not len(found):
        return 0, ""
    parents = Nesting(python).parent[found]
    around = [python.names[python.name[row]] for row in parents.tolist() if row >= 0]
    return len(found), str(pd.Series(around).mode().iloc[0]) if around else ""
