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


def top_sites(sites: pd.DataFrame, selection: Selection) -> tuple[pd.DataFrame, int]:
    """Give the rows to show of a table that is sorted by ``bytes``, and the bytes of the others."""
    shown = sites[sites["bytes"] >= selection.min_size]
    if selection.top is not None:
        shown = shown.head(selection.top)
    return shown, int(sites["bytes"].sum() - shown["bytes"].sum())


def with_others(table: pd.DataFrame, selection: Selection) -> tuple[list[Any], Any | None]:
    """Give the first rows of a table, and one row that sums the numbers of the others; None where all are shown."""
    top = len(table) if selection.top is None else selection.top
    if len(table) <= top:
        return list(rows(table)), None
    rest = table.iloc[top:].sum(numeric_only=True)
    (others,) = rows(pd.DataFrame([{"name": "others", **rest.to_dict()}]))
    return list(rows(table.head(top))), others
