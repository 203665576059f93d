"""Training steps, found in the annotations of the snapshot."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from snapana.snapshot.model import Snapshot

_PROFILER_STEP = re.compile(r"ProfilerStep#\d+$")


@dataclass(frozen=True)
class Steps:
    """Steps of one device.

    Attributes:
        source: the annotation that marks them, such as ``Optimizer.step#AdamW.step``; empty where none does.
        table: one row per step: ``index``, ``name``, ``start_event`` (first event of the step), ``end_event``
            (last one), ``peak_allocated``, ``end_allocated``, ``peak_reserved`` (bytes).

    """

    source: str
    table: pd.DataFrame

    def __len__(self) -> int:
        return len(self.table)


_COLUMNS = ("index", "name", "start_event", "end_event", "peak_allocated", "end_allocated", "peak_reserved")


def steps(snapshot: Snapshot, device: int) -> Steps:
    """Find steps from ``ProfilerStep#N`` ranges, else from the ends of ``Optimizer.step#...``."""
    replay = snapshot.replay[device]
    times = replay.events["time_us"].to_numpy()
    empty = pd.DataFrame(columns=list(_COLUMNS))
    if not len(times) or int(times[0]) < 0:
        return Steps("", empty)
    marks = snapshot.annotations
    marks = marks[(marks["end_us"] >= int(times[0])) & (marks["end_us"] >= 0)]
    own = marks[marks["device"] == device]
    marks = own if len(own) else marks
    profiler = marks[marks["name"].str.match(_PROFILER_STEP)]
    if len(profiler):
        return Steps("ProfilerStep#", _table(snapshot, device, profiler))
    optimizer = marks[marks["name"].str.startswith("Optimizer.step#")]
    if not len(optimizer):
        return Steps("", empty)
    # With several optimizers a step ends where the one that steps most often does.
    source = str(optimizer["name"].value_counts(sort=True).index[0])
    return Steps(source, _table(snapshot, device, optimizer[optimizer["name"] == source]))


def _table(snapshot: Snapshot, device: int, spans: pd.DataFrame) -> pd.DataFrame:
    replay = snapshot.replay[device]
    times = replay.events["time_us"].to_numpy()
    spans = spans.sort_values("end_us", kind="stable")
    ends = np.searchsorted(times, spans["end_us"].to_numpy(), side="right") - 1
    ranged = bool(spans["name"].str.startswith("ProfilerStep#").all())
    starts = np.concatenate([[0], ends[:-1] + 1])
    if ranged:
        first = int(np.searchsorted(times, int(spans["start_us"].iloc[0]), side="left"))
        starts[0] = min(first, int(ends[0]))
    allocated, reserved = replay.curves["allocated"].to_numpy(), replay.curves["reserved"].to_numpy()
    rows = [
        (
            number,
            name,
            int(start),
            int(end),
            # The state before a step's first event belongs to it as well.
            int(allocated[start : end + 2].max()),
            int(allocated[end + 1]),
            int(reserved[start : end + 2].max()),
        )
        for number, (name, start, end) in enumerate(zip(spans["name"], starts, ends, strict=True))
        if end + 1 >= start
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))
