"""What was allocated, grouped by anything that is known of an allocation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.choices import TRACE_GROUPS
from snapana.analyses.overview import DeviceOverview
from snapana.analyses.rules import CATEGORIES
from snapana.analyses.sites import site_codes, site_list
from snapana.analyses.spans import innermost
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]

NO_ANNOTATION = "(no annotation)"
NO_WINDOW = "(before the window)"
NO_STEPS = "(no steps known)"
AFTER_STEPS = "(after the last step)"


def group_codes(snapshot: Snapshot, device: DeviceOverview, lives: pd.DataFrame, by: str) -> tuple[IntArray, list[str]]:
    """Give each allocation the number of its group, and the groups' names by number.

    Args:
        snapshot: the file.
        device: its results.
        lives: any rows of ``DeviceReplay.allocations``.
        by: one of ``GROUPS`` or ``TRACE_GROUPS``.

    Raises:
        SnapanaError: ``usage.by`` for what only a trace tells, where there is none.

    """
    row = lives.index.to_numpy()
    if by == "category":
        return device.codes[row], list(CATEGORIES)
    if by in TRACE_GROUPS:
        return _asked(snapshot, device, by, row)
    if by == "step":
        return _steps(device, lives)
    if by == "stream":
        return _factorized([f"stream {stream}" for stream in lives["stream"].tolist()])
    if by == "pool":
        pools = [str(pool) for pool in snapshot.pools]
        return lives["pool"].to_numpy(), pools
    if by == "annotation":
        spans, names = innermost(snapshot, device.device)
        born = lives["alloc"].to_numpy()
        inside = np.append(spans, -1)[np.where(born >= 0, born, len(spans))]
        return np.where(inside < 0, len(names), inside), [*names, NO_ANNOTATION]
    sites = site_list(snapshot)
    codes = site_codes(snapshot, lives)
    if by == "site":
        return codes, [site.label for site in sites]
    labels = [(site.file if by == "file" else site.function) or site.label for site in sites]
    numbers, names = _factorized(labels)
    return numbers[codes], names


def _factorized(labels: list[str]) -> tuple[IntArray, list[str]]:
    codes, names = pd.factorize(np.array(labels, dtype=object))
    return codes.astype(np.int64), [str(name) for name in names]


def _asked(snapshot: Snapshot, device: DeviceOverview, by: str, row: IntArray) -> tuple[IntArray, list[str]]:
    if device.profile is None:
        raise SnapanaError(
            "usage.by",
            f"{snapshot.info.name} does not tell by which {by.replace('_', ' ')} memory was asked for.",
            "Give a profiler trace of the same run with --trace.",
        )
    found = device.profile.askers[by]
    codes = found.code[row]
    numbers, known = pd.factorize(codes, sort=True)
    return numbers.astype(np.int64), [found.names[code] for code in known.tolist()]


def _steps(device: DeviceOverview, lives: pd.DataFrame) -> tuple[IntArray, list[str]]:
    """Group by the step of the allocation."""
    table = device.steps.table
    ends = table["end_event"].to_numpy()
    born = lives["alloc"].to_numpy()
    names = [
        NO_WINDOW,
        *(f"step {index}" for index in table["index"].tolist()),
        AFTER_STEPS if len(table) else NO_STEPS,
    ]
    return np.where(born < 0, 0, np.searchsorted(ends, born, side="left") + 1).astype(np.int64), names


def group_at(snapshot: Snapshot, device: DeviceOverview, by: str) -> pd.DataFrame:
    """Sum what is allocated at a device's peak, or the instant that was asked for, by group, largest first.

    Returns:
        ``name``, ``bytes`` (occupied; they sum to what is allocated), ``requested``, ``blocks``.

    """
    live = snapshot.replay[device.device].live(device.peak.event)
    codes, names = group_codes(snapshot, device, live, by)
    table = pd.DataFrame(
        {
            "code": codes,
            "bytes": live["size"].to_numpy(),
            "requested": live["requested"].to_numpy(),
            "blocks": 1,
        }
    )
    sums = table.groupby("code", as_index=False).sum()
    sums["name"] = [names[code] for code in sums["code"]]
    # Different sites may share a label.
    merged = sums.groupby("name", as_index=False)[["bytes", "requested", "blocks"]].sum()
    return merged.sort_values(["bytes", "name"], ascending=[False, True], kind="stable", ignore_index=True)


def stacked(lives: pd.DataFrame, codes: IntArray, count: int, events: IntArray) -> IntArray:
    """Sum allocated bytes by group at each of some events: shape (count, events); ``events`` ascend."""
    born, freed = lives["alloc"].to_numpy(), lives["free_requested"].to_numpy()
    size = lives["size"].to_numpy()
    first = np.searchsorted(events, born, side="left")
    # Freed before the window (-2) was never allocated within it.
    last = np.where(freed == -1, len(events), np.searchsorted(events, freed, side="left"))
    seen = last > first
    delta = np.zeros((count, len(events) + 1), dtype=np.int64)
    np.add.at(delta, (codes[seen], first[seen]), size[seen])
    np.subtract.at(delta, (codes[seen], last[seen]), size[seen])
    return np.cumsum(delta, axis=1)[:, :-1]
