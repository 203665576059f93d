"""Helpers around pandas frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd


def rows(frame: pd.DataFrame) -> Iterator[Any]:
    """Give the rows as named tuples."""
    return frame.itertuples(index=False)
