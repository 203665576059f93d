"""Bytes for people and back: binary units, always with the suffix written."""

from __future__ import annotations

import re

from snapana.errors import SnapanaError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)(b?)\s*$", re.IGNORECASE)


def format_bytes(size: int | float | None) -> str:
    """Write a number of bytes: ``"5.52 GiB"``, ``"512 B"``; ``"unknown"`` for None."""
    if size is None:
        return "unknown"
    sign = "-" if size < 0 else ""
    value = abs(float(size))
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{sign}{value:,.0f} B"
    return f"{sign}{value:,.2f} {unit}"


def format_count(count: int | None) -> str:
    """Write a count with thousands separated by commas; ``"unknown"`` for None."""
    return "unknown" if count is None else f"{count:,}"


def parse_size(text: str) -> int:
    """Read ``"24GiB"``, ``"64 MiB"``, ``"1.5g"`` or ``"1048576"`` as bytes, rounded down.

    Units are binary whatever their spelling (``GB`` is read as GiB), as PyTorch's messages use them.

    Raises:
        SnapanaError: ``usage.size`` for anything else.

    """
    found = _SIZE.match(text)
    if not found:
        raise SnapanaError("usage.size", f"not a size: {text!r}", "Write it like 24GiB, 64MiB or 1048576.")
    number = found.group(1).replace("_", "").replace(",", "")
    power = " kmgtp".index(found.group(2).lower() or " ")
    if "." not in number:
        return int(number) * int(1024**power)
    return int(float(number) * 1024**power)


def known(value: int) -> int | None:
    """Give a figure, None for -1, which stands for an unknown one in columns."""
    return None if value < 0 else value
