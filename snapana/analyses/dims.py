"""Sizes written as products of a model's dimensions."""

from __future__ import annotations

import re
from itertools import combinations_with_replacement
from math import prod

from snapana.errors import SnapanaError

# Bytes of an element, the usual ones first: 2 (half precisions), 4, 1, 8 (long, double).
_ELEMENTS = (2, 4, 1, 8)
_SEQUENCE = re.compile(r"seq|len|ctx|context|tok|time", re.IGNORECASE)
_MOST_FACTORS = 3
# What is left over, such as a batch, is at most this.
_LARGEST_REST = 65_536


def parse_dims(text: str) -> dict[str, int]:
    """Read ``vocab=32000,hidden=2048``.

    Raises:
        SnapanaError: ``usage.dims``.

    """
    found = {}
    for part in text.split(","):
        pair = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*([1-9]\d{0,9})\s*", part)
        if not pair:
            raise SnapanaError("usage.dims", f"{part!r} is no dimension.", "Write them as vocab=32000,hidden=2048.")
        found[pair.group(1)] = int(pair.group(2))
    return found


def as_product(size: int, dims: dict[str, int]) -> str | None:
    """Write requested bytes as a product of dimensions, an element size, and at most one other factor.

    Several ways are possible. Without another factor it is a weight; with one, a batch, activations run along a
    sequence, where a dimension is named like one. Then the usual element size and the smallest factor win.

    Returns:
        Such as ``72 x seq 1,024 x vocab 32,000 x 2 bytes``; None where no dimension divides the size.

    """
    ordered = sorted(dims, key=lambda name: not _SEQUENCE.search(name))
    along = {name for name in dims if _SEQUENCE.search(name)}
    best: tuple[tuple[int, ...], str] | None = None
    for count in range(1, _MOST_FACTORS + 1):
        for names in combinations_with_replacement(ordered, count):
            whole = prod(dims[name] for name in names)
            for rank, element in enumerate(_ELEMENTS):
                rest, left = divmod(size, whole * element)
                if left or not 0 < rest <= _LARGEST_REST:
                    continue
                unlikely = bool(along) and rest > 1 and not along & set(names)
                key = (int(rest > 1), int(unlikely), rank, rest, count)
                if best is None or key < best[0]:
                    factors = [f"{rest:,}"] if rest > 1 else []
                    factors += [f"{name} {dims[name]:,}" for name in names]
                    best = (key, " x ".join([*factors, f"{element} byte{'s' if element > 1 else ''}"]))
    return None if best is None else best[1]
