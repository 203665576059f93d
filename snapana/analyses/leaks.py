"""Sites whose live bytes grow step after step: growth, not survival, is a leak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.sites import site_codes, site_list
from snapana.analyses.steps import Steps
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]

# Fewer steps than this show no trend.
MIN_STEPS = 4
# So few steps are judged only where each adds exactly the same; more may vary: warm-up takes two of them, and
# the last one is still in use.
STRICT_STEPS = 5
MIN_GROWTHS = 3
# Pairs of steps that the robust slope looks at; beyond it steps are thinned out.
MAX_SLOPE_STEPS = 400


@dataclass(frozen=True)
class Leaks:
    """What grows.

    Attributes:
        judged: False where the steps are too few or unknown.
        steps: number of steps looked at, after warm-up.
        table: one row per leaking site, by requested bytes: ``site``, ``file``, ``line``, ``function``,
            ``bytes_per_step`` (requested, robust slope), ``block_bytes_per_step`` (occupied),
            ``blocks_per_step``, ``steps``, ``total`` (requested bytes of the survivors), ``confidence``
            (0 to 1), ``stack``, ``code`` (number of the site).
        boundaries: event at each step's end.
        live: requested bytes at each boundary, one row per row of ``table``.

    """

    judged: bool
    steps: int
    table: pd.DataFrame
    boundaries: IntArray
    live: IntArray


_COLUMNS = (
    "site",
    "file",
    "line",
    "function",
    "bytes_per_step",
    "block_bytes_per_step",
    "blocks_per_step",
    "steps",
    "total",
    "confidence",
    "stack",
    "code",
)


def leaks(snapshot: Snapshot, device: int, steps: Steps) -> Leaks:
    """Find sites whose live bytes grow over the steps after warm-up.

    Args:
        snapshot: the file.
        device: ordinal.
        steps: as of ``steps``.

    """
    boundaries = np.asarray(steps.table["end_event"].to_numpy(), dtype=np.int64)
    nothing = pd.DataFrame(columns=list(_COLUMNS))
    if len(boundaries) < MIN_STEPS:
        return Leaks(False, len(boundaries), nothing, boundaries, np.zeros((0, len(boundaries)), dtype=np.int64))
    lives = snapshot.replay[device].allocations
    codes = site_codes(snapshot, lives)
    count = len(site_list(snapshot))
    live = _live_at(lives, codes, count, boundaries, lives["requested"].to_numpy())
    survived = _survivors(lives, codes, count, boundaries)
    warm = 2 if len(boundaries) > STRICT_STEPS else 1
    grows = _grows if len(boundaries) >= STRICT_STEPS else _grows_evenly
    rows = [code for code in np.flatnonzero(survived.any(axis=1)).tolist() if grows(live[code], survived[code], warm)]
    table = _table(snapshot, lives, codes, rows, boundaries, live, warm)
    return Leaks(True, len(boundaries) - warm, table, boundaries, live[table["code"].to_numpy(dtype=np.int64)])


def _live_at(lives: pd.DataFrame, codes: IntArray, count: int, boundaries: IntArray, weight: IntArray) -> IntArray:
    """Sum ``weight`` by site of what is alive at each boundary: shape (sites, boundaries)."""
    first = np.searchsorted(boundaries, lives["alloc"].to_numpy(), side="left")
    freed = lives["free_requested"].to_numpy()
    last = np.where(freed == -1, len(boundaries), np.searchsorted(boundaries, freed, side="left"))
    seen = last > first
    delta = np.zeros((count, len(boundaries) + 1), dtype=np.int64)
    np.add.at(delta, (codes[seen], first[seen]), weight[seen])
    np.subtract.at(delta, (codes[seen], last[seen]), weight[seen])
    return np.cumsum(delta, axis=1)[:, :-1]


def _survivors(lives: pd.DataFrame, codes: IntArray, count: int, boundaries: IntArray) -> IntArray:
    """Count blocks by site and step of birth that are alive at the last boundary."""
    born, freed = lives["alloc"].to_numpy(), lives["free_requested"].to_numpy()
    alive = (born <= boundaries[-1]) & ((freed == -1) | (freed > boundaries[-1]))
    table = np.zeros((count, len(boundaries)), dtype=np.int64)
    step = np.searchsorted(boundaries, born[alive], side="left")
    np.add.at(table, (codes[alive], step), 1)
    return table


def _grows(live: IntArray, survived: IntArray, warm: int) -> bool:
    """Judge one site: steps after warm-up keep leaving blocks behind, to the end, and live bytes rise.

    The last step is left out: what it made is still in use.
    """
    middle = survived[warm:-1]
    hits = np.flatnonzero(middle)
    if len(hits) < MIN_GROWTHS:
        return False
    period = int(np.median(np.diff(hits)))
    regular = int(np.diff(hits).max()) <= 2 * period
    recent = len(middle) - 1 - int(hits[-1]) <= 2 * period
    spread = int(hits[-1] - hits[0]) + period >= len(middle) / 2
    tail = live[warm:]
    window = max(1, 2 * period)
    lows = np.array([tail[start : start + window].min() for start in range(0, len(tail), window)])
    rising = bool((np.diff(lows) > 0).mean() >= 0.75) if len(lows) > 1 else False
    return regular and recent and spread and rising


def _grows_evenly(live: IntArray, survived: IntArray, warm: int) -> bool:
    """Judge one site over very few steps: each of them leaves blocks behind, and adds the same bytes."""
    growth = np.diff(live)
    return bool((survived[warm:] > 0).all() and growth[0] > 0 and (growth == growth[0]).all())


def robust_slope(values: IntArray) -> float:
    """Median of the slopes between all pairs of points (Theil and Sen), per step."""
    step = -(-len(values) // MAX_SLOPE_STEPS)
    thin = values[::step].astype(np.float64)
    left, right = np.triu_indices(len(thin), k=1)
    return float(np.median((thin[right] - thin[left]) / (right - left))) / step


def _table(
    snapshot: Snapshot,
    lives: pd.DataFrame,
    codes: IntArray,
    rows: list[int],
    boundaries: IntArray,
    live: IntArray,
    warm: int,
) -> pd.DataFrame:
    if not rows:
        return pd.DataFrame(columns=list(_COLUMNS))
    sites = site_list(snapshot)
    chosen = np.isin(codes, rows)
    own, own_codes = lives[chosen], codes[chosen]
    sizes = _live_at(own, own_codes, len(sites), boundaries, own["size"].to_numpy())
    blocks = _live_at(own, own_codes, len(sites), boundaries, np.ones(len(own), dtype=np.int64))
    found = []
    for code in rows:
        site = sites[code]
        mine = own[own_codes == code]
        freed = mine["free_requested"].to_numpy()
        survivors = mine[(mine["alloc"].to_numpy() > boundaries[warm - 1]) & (freed == -1)]
        growths = np.diff(live[code][warm:])
        slope = robust_slope(live[code][warm:])
        agreement = float((growths > 0).mean()) if slope else 0.0
        found.append(
            (
                site.label,
                site.file,
                site.line,
                site.function,
                slope or float(live[code][-1] - live[code][warm]) / (len(boundaries) - 1 - warm),
                robust_slope(sizes[code][warm:]),
                robust_slope(blocks[code][warm:]),
                len(boundaries) - warm,
                int(survivors["requested"].sum()),
                round(max(agreement, 0.5), 2) if len(boundaries) >= STRICT_STEPS else 0.5,
                int(survivors["stack"].mode().iloc[0]) if len(survivors) else -1,
                code,
            )
        )
    table = pd.DataFrame(found, columns=list(_COLUMNS))
    return table.sort_values(["bytes_per_step", "site"], ascending=[False, True], ignore_index=True)
