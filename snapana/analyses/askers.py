"""Who asked for memory: operators, modules, functions, annotations of a profiler trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Askers:
    """Who asked for memory, in one respect.

    Attributes:
        code: of each allocation of the device.
        names: by code, of those that asked for any.
        table: one row each, by bytes at the peak: ``name``, ``allocated``, ``freed``, ``net`` (bytes), ``at_peak``
            (bytes alive at the peak; they sum to it), ``allocations``; empty where nothing is named.

    """

    code: IntArray
    names: dict[int, str]
    table: pd.DataFrame


def askers(lives: pd.DataFrame, code: IntArray, names: list[str], event: int, outside: str) -> Askers:
    """Sum allocations by who asked for them.

    Args:
        lives: allocations.
        code: of each; -1 for none recorded, -2 for outside of the trace.
        names: by code.
        event: the instant of ``at_peak``.
        outside: name of what the trace does not cover.

    """
    columns = ["name", "allocated", "freed", "net", "at_peak", "allocations"]
    special = {-1: "(none recorded)", -2: outside}
    known = {number: special.get(number) or names[number] for number in np.unique(code).tolist()}
    if not (code >= 0).any():
        return Askers(code, known, pd.DataFrame(columns=columns))
    born, freed = lives["alloc"].to_numpy(), lives["free_requested"].to_numpy()
    size = lives["size"].to_numpy()
    seen = (born >= 0) & (code != -2)
    table = pd.DataFrame(
        {
            "code": code,
            "allocated": np.where(seen, size, 0),
            "freed": np.where(seen & (freed >= 0), size, 0),
            "at_peak": np.where((born <= event) & ((freed == -1) | (freed > event)), size, 0),
            "allocations": seen.astype(np.int64),
        }
    )
    sums = table.groupby("code", as_index=False).sum()
    sums["name"] = sums["code"].map(known)
    sums["net"] = sums["allocated"] - sums["freed"]
    sums = sums.sort_values(["at_peak", "allocated"], ascending=False, kind="stable", ignore_index=True)
    return Askers(code, known, sums[columns])
