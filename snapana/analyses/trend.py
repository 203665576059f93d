"""How memory goes on from step to step: flat, growing, or in stairs; and when it will run out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from snapana.analyses.leaks import Leaks, robust_slope
from snapana.analyses.steps import Steps

IntArray = npt.NDArray[np.int64]

# Changes below this share of the level are none.
_SMALL = 0.005


@dataclass(frozen=True)
class Trend:
    """The course of one figure over the steps after warm-up.

    Attributes:
        name: ``allocated at step ends``, ``peak per step`` or ``reserved``.
        kind: ``flat``, ``growing``, ``stair`` (rises now and then) or ``varying``.
        per_step: bytes a step, for ``growing`` and ``stair``; 0 otherwise.
        low: lowest value in bytes.
        high: highest.

    """

    name: str
    kind: str
    per_step: float
    low: int
    high: int


@dataclass(frozen=True)
class Course:
    """What a leak table needs to be read.

    Attributes:
        trends: of what is allocated at step ends, of the peak of each step, of what is reserved.
        ratio: highest peak of a step over the lowest, after warm-up.
        projection: steps until memory runs out at this slope, None where nothing grows or no limit is known.

    """

    trends: tuple[Trend, ...]
    ratio: float
    projection: int | None

    @property
    def varies(self) -> bool:
        """Step ends are flat, but steps need very different amounts: no leak, whatever the peak does."""
        return self.trends[0].kind == "flat" and self.ratio >= 1.5


def step_course(steps: Steps, found: Leaks, room: int | None) -> Course | None:
    """Describe the steps; None where there are fewer than three.

    Args:
        steps: as of ``steps``.
        found: as of ``leaks``: warm-up comes from there.
        room: bytes that may still be allocated above the highest peak, None if not known.

    """
    table = steps.table
    if len(table) < 3:
        return None
    warm = min(found.warm_up or 1, len(table) - 2)
    columns = (
        ("allocated at step ends", "end_allocated"),
        ("peak per step", "peak_allocated"),
        ("reserved", "peak_reserved"),
    )
    values = ((name, table[column].to_numpy(dtype=np.int64)[warm:]) for name, column in columns)
    # What is reserved is unknown on the CPU.
    trends = tuple(_trend(name, column) for name, column in values if int(column.max()) >= 0)
    peaks = table["peak_allocated"].to_numpy(dtype=np.int64)[warm:]
    growth = float(found.table["block_bytes_per_step"].sum()) if found.judged else 0.0
    steps_left = int(room / growth) if room is not None and growth > 0 else None
    return Course(trends, float(peaks.max()) / max(int(peaks.min()), 1), steps_left)


def _trend(name: str, values: IntArray) -> Trend:
    low, high = int(values.min()), int(values.max())
    change = np.diff(values)
    slope = robust_slope(values)
    level = max(float(np.median(values)), 1.0)
    total = slope * (len(values) - 1)
    rises, falls = int((change > 0).sum()), int((change < 0).sum())
    if rises and not falls and rises < max(1, len(change) * 3 // 4):
        kind, slope = "stair", float(values[-1] - values[0]) / max(len(values) - 1, 1)
    elif rises >= 0.75 * len(change) and slope > 0 and (not falls or total >= 0.5 * (high - low)):
        kind = "growing"
    elif high - low <= _SMALL * level:
        kind = "flat"
    else:
        kind = "varying"
    return Trend(name, kind, slope if kind in {"growing", "stair"} else 0.0, low, high)
