"""What to show of a long table, and the sum of what is folded away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from snapana.frames import rows


@dataclass(frozen=True)
class Selection:
    """Size of the tables.

    Attributes:
        top: at most so many rows; None for all.
        min_size: only rows of at least so many bytes.
        dims: of the model, by name: sizes are written as their products.

    """

    top: int | None = 20
    min_size: int = 0
    dims: dict[str, int] = field(default_factory=dict)


def limited(table: pd.DataFrame, selection: Selection) -> pd.DataFrame:
    """Give the first rows of a table."""
    return table if selection.top is None else table.head(selection.top)


def top_sites(sites: pd.DataFrame, selection: Selection) -> tuple[pd.DataFrame, int]:
    """Give the rows to show of a table that is sorted by ``bytes``, and the bytes of the others."""
    shown = limited(sites[sites["bytes"] >= selection.min_size], selection)
    return shown, int(sites["bytes"].sum() - shown["bytes"].sum())


def with_others(table: pd.DataFrame, selection: Selection) -> tuple[list[Any], Any | None]:
    """Give the first rows of a table, and one row that sums the numbers of the others; None where all are shown."""
    shown = limited(table, selection)
    if len(shown) == len(table):
        return list(rows(shown)), None
    rest = table.iloc[len(shown) :].sum(numeric_only=True)
    (others,) = rows(pd.DataFrame([{"name": "others", **rest.to_dict()}]))
    return list(rows(shown)), others
