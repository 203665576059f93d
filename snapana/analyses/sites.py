"""Grouping of allocations by the line that asked for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.snapshot.model import Snapshot
from snapana.snapshot.stacks import NO_SITE, Site

BEFORE_WINDOW = Site("(before the window)", "", 0, "", "none")


def site_codes(snapshot: Snapshot, lives: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Give each allocation the number of its site: see ``site_list``.

    A life from before the window whose stack is unknown belongs to ``(before the window)``, one that was
    recorded without a stack to ``(no stack)``.
    """
    sites, of_stack = snapshot.stacks.site_table
    table = np.array([*of_stack, len(sites)], dtype=np.int64)
    stack = lives["stack"].to_numpy()
    codes: npt.NDArray[np.int64] = table[stack]
    codes[(stack < 0) & (lives["alloc"].to_numpy() < 0)] = len(sites) + 1
    return codes


def site_list(snapshot: Snapshot) -> list[Site]:
    """Give the sites that ``site_codes`` counts by: those of the file, ``(no stack)``, ``(before the window)``."""
    return [*snapshot.stacks.site_table[0], NO_SITE, BEFORE_WINDOW]


def by_site(snapshot: Snapshot, lives: pd.DataFrame, categories: npt.NDArray[np.int64] | None = None) -> pd.DataFrame:
    """Sum allocations by site, largest first.

    Args:
        snapshot: the file.
        lives: any rows of ``DeviceReplay.allocations``.
        categories: of all allocations of the device, as of ``categorise``.

    Returns:
        One row per (file, line, function): ``site``, ``file``, ``line``, ``function``, ``kind``, ``bytes``
        (occupied), ``requested`` (bytes asked for), ``blocks`` (count), ``stack`` (id of the stack with most
        bytes, -1 if none), ``largest`` (bytes asked for of the largest block) and ``category`` (index of that
        with most bytes, -1 where none are given). The sums are those of ``lives``.

    """
    sites = site_list(snapshot)
    table = pd.DataFrame(
        {
            "code": site_codes(snapshot, lives),
            "stack": lives["stack"].to_numpy(),
            "bytes": lives["size"].to_numpy(),
            "requested": lives["requested"].to_numpy(),
            "blocks": 1,
        }
    )
    kinds = _main_category(table, lives, categories)
    stacks = table.groupby(["code", "stack"], as_index=False).sum()
    stacks = stacks.sort_values(["bytes", "stack"], ascending=[False, True], kind="stable")
    sums = stacks.groupby("code", sort=False).agg(
        bytes=("bytes", "sum"),
        requested=("requested", "sum"),
        blocks=("blocks", "sum"),
        stack=("stack", "first"),
    )
    largest = table.groupby("code")["requested"].max()
    rows = sums.reset_index()
    named = pd.DataFrame(
        {
            "site": [sites[code].label for code in rows["code"]],
            "file": [sites[code].file for code in rows["code"]],
            "line": [sites[code].line for code in rows["code"]],
            "function": [sites[code].function for code in rows["code"]],
            "kind": [sites[code].kind for code in rows["code"]],
        }
    )
    joined = pd.concat([named, rows], axis=1)
    joined["largest"] = largest.reindex(joined["code"]).to_numpy()
    joined["category"] = [kinds.get(code, -1) for code in rows["code"]]
    order = np.lexsort((joined["site"].to_numpy().astype(str), -joined["bytes"].to_numpy()))
    return joined.iloc[order].reset_index(drop=True)


def _main_category(
    table: pd.DataFrame, lives: pd.DataFrame, categories: npt.NDArray[np.int64] | None
) -> dict[int, int]:
    """Give for each site's code the category with most of its bytes."""
    if categories is None:
        return {}
    own = table[["code", "bytes"]].assign(category=categories[lives.index.to_numpy()])
    sums = own.groupby(["code", "category"], as_index=False).sum().sort_values("bytes", kind="stable")
    return dict(zip(sums["code"].tolist(), sums["category"].tolist(), strict=True))
