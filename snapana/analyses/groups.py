"""What was allocated, grouped by anything that is known of an allocation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.rules import CATEGORIES
from snapana.analyses.sites import site_codes, site_list
from snapana.analyses.spans import innermost
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]

GROUPS = ("site", "category", "file", "function", "annotation", "stream", "pool")
NO_ANNOTATION = "(no annotation)"


def group_codes(
    snapshot: Snapshot, device: int, lives: pd.DataFrame, by: str, categories: IntArray
) -> tuple[IntArray, list[str]]:
    """Give each allocation the number of its group, and the groups' names by number.

    Args:
        snapshot: the file.
        device: ordinal.
        lives: any rows of ``DeviceReplay.allocations``.
        by: one of ``GROUPS``.
        categories: of all allocations of the device, as of ``categorise``.

    """
    if by == "category":
        return categories[lives.index.to_numpy()], list(CATEGORIES)
    if by == "stream":
        return _factorized([f"stream {stream}" for stream in lives["stream"].tolist()])
    if by == "pool":
        pools = [str(pool) for pool in snapshot.pools]
        return lives["pool"].to_numpy(), pools
    if by == "annotation":
        spans, names = innermost(snapshot, device)
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


def group_at(snapshot: Snapshot, device: int, event: int, by: str, categories: IntArray) -> pd.DataFrame:
    """Sum what is allocated after an event by group, largest first.

    Returns:
        ``name``, ``bytes`` (occupied; they sum to what is allocated), ``requested``, ``blocks``.

    """
    live = snapshot.replay[device].live(event)
    codes, names = group_codes(snapshot, device, live, by, categories)
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
