"""A gate: limits that a run must keep, against fixed figures or against an earlier run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from snapana.analyses.compare import Comparison
from snapana.analyses.overview import DeviceOverview, Overview
from snapana.errors import SnapanaError
from snapana.frames import rows
from snapana.units import format_bytes, parse_size

_SITES = 5


@dataclass(frozen=True)
class Limits:
    """What is checked; None for what is not.

    Attributes:
        max_allocated: bytes that the peak of allocated may have.
        max_reserved: bytes that the peak of reserved may have.
        max_leak: bytes that may be kept each step.
        min_utilization: share of reserved that must be active where most is reserved.
        tolerance: how much more than the baseline the peak of allocated may have: bytes (int), or a share (float).
        strict_reserved: whether reserved is held against the baseline as well.

    """

    max_allocated: int | None = None
    max_reserved: int | None = None
    max_leak: int | None = None
    min_utilization: float | None = None
    tolerance: int | float = 0.02
    strict_reserved: bool = False


@dataclass(frozen=True)
class Offender:
    """A line of code behind a failed check: its label and what it adds."""

    site: str
    bytes: int


@dataclass(frozen=True)
class Check:
    """One limit, held against one device.

    Attributes:
        name: such as ``max_allocated``.
        device: ordinal.
        limit: bytes, or a share for ``min_utilization``.
        value: measured; None where the file does not tell, which fails.
        passed: whether the limit is kept.
        why: what is wrong, in a sentence; empty if nothing is.
        sites: lines of code behind a failure, most bytes first.

    """

    name: str
    device: int
    limit: int | float
    value: int | float | None
    passed: bool
    why: str = ""
    sites: tuple[Offender, ...] = ()


def parse_leak(text: str) -> int:
    """Read ``1MiB/step`` or ``1MiB`` as bytes a step.

    Raises:
        SnapanaError: ``usage.size`` for anything else.

    """
    return parse_size(text.strip().removesuffix("/step"))


def parse_tolerance(text: str) -> int | float:
    """Read ``2%`` or ``0.02`` as a share, ``64MiB`` as bytes.

    Raises:
        SnapanaError: ``usage.size`` for anything else.

    """
    text = text.strip()
    # Nothing is tolerated by a fraction of a byte.
    fraction = re.fullmatch(r"0?\.\d+", text) is not None
    if not text.endswith("%") and not fraction:
        return parse_size(text)
    try:
        share = float(text) if fraction else float(text[:-1]) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1e6:
        raise SnapanaError("usage.size", f"not a tolerance: {text!r}", "Write it like 2% or 64MiB.")
    return share


def check(results: Overview, limits: Limits, compared: Sequence[Comparison] = ()) -> list[Check]:
    """Hold a run against limits.

    Args:
        results: of the run.
        limits: to be kept by each of its devices.
        compared: the run against its baseline, one for each device, if there is a baseline.

    Returns:
        One row for each limit and device, in a fixed order; a file that says nothing of any device fails each limit.

    """
    devices = [one for one in results.devices if one.device >= 0 or len(results.devices) == 1]
    if not devices:
        given = ("max_allocated", "max_reserved", "max_leak", "min_utilization")
        return [
            Check(name, 0, limit, None, passed=False, why="The file says nothing of any device.")
            for name in given
            if (limit := getattr(limits, name)) is not None
        ]
    found = [
        one
        for device in devices
        for one in (
            _allocated(device, limits.max_allocated),
            _reserved(device, limits.max_reserved),
            _leak(device, limits.max_leak),
            _utilization(device, limits.min_utilization),
        )
        if one is not None
    ]
    return [*found, *(one for each in compared for one in _baseline(each, limits))]


def _judged(
    name: str, device: int, limit: int | float, value: int | float | None, *, why: str, sites: Sequence[Offender]
) -> Check:
    """Fail a figure above its limit, and one that is not known."""
    if value is not None and value <= limit:
        return Check(name, device, limit, value, passed=True)
    return Check(name, device, limit, value, passed=False, why=why, sites=tuple(sites))


def _top(table: Any, column: str = "bytes") -> list[Offender]:
    largest = table.sort_values(column, ascending=False, kind="stable").head(_SITES)
    return [Offender(row.site, int(getattr(row, column))) for row in rows(largest)]


def _over(what: str, value: int | None, limit: int) -> str:
    if value is None:
        return f"The file does not tell {what}."
    return f"{what[0].upper()}{what[1:]} is {format_bytes(value)}, {format_bytes(value - limit)} above the limit."


def _allocated(device: DeviceOverview, limit: int | None) -> Check | None:
    if limit is None:
        return None
    value = device.waiting.peak_allocated if device.coverage.events else None
    why = _over("the peak of allocated", value, limit)
    return _judged("max_allocated", device.device, limit, value, why=why, sites=_top(device.peak.sites))


def _reserved(device: DeviceOverview, limit: int | None) -> Check | None:
    if limit is None:
        return None
    value = device.peak_reserved if device.coverage.events else None
    why = _over("the peak of reserved", value, limit)
    return _judged("max_reserved", device.device, limit, value, why=why, sites=_top(device.peak.sites))


def _leak(device: DeviceOverview, limit: int | None) -> Check | None:
    if limit is None:
        return None
    table = device.leaks.table
    if not device.leaks.judged:
        why = "Growth could not be judged: no steps are known, or too few; --step names an annotation."
        return Check("max_leak", device.device, limit, None, passed=False, why=why)
    value = round(float(table["bytes_per_step"].sum()))
    why = f"{format_bytes(value)} is kept each step, {format_bytes(value - limit)} above the limit."
    sites = [Offender(row.site, round(row.bytes_per_step)) for row in rows(table.head(_SITES))]
    return _judged("max_leak", device.device, limit, value, why=why, sites=sites)


def _utilization(device: DeviceOverview, limit: float | None) -> Check | None:
    if limit is None:
        return None
    value = None if device.space is None else device.space.fullest.utilization
    if value is not None and value >= limit:
        return Check("min_utilization", device.device, limit, value, passed=True)
    why = "The file does not tell how much of what is reserved was in use."
    sites: list[Offender] = []
    if value is not None and device.space is not None:
        why = f"Where most was reserved, {value:.1%} of it was in use; {limit:.0%} is asked for."
        pins = device.space.fullest.pins.head(_SITES)
        sites = [Offender(row.site, int(row.pinned)) for row in rows(pins)]
    return Check("min_utilization", device.device, limit, value, passed=False, why=why, sites=tuple(sites))


def _baseline(found: Comparison, limits: Limits) -> list[Check]:
    device, base = found.other.device, found.base.device
    if not found.peaks_known:
        why = "One of the two files holds a final state only: its peak is not known."
        return [Check("baseline", device.device, 0, None, passed=False, why=why)]
    allocated = _allowed(base.peak.allocated, limits.tolerance)
    grown = found.sites[found.sites["delta"] > 0]
    value = device.peak.allocated
    why = (
        f"The peak of allocated is {format_bytes(value)}, {format_bytes(found.peak_allocated)} above that of "
        f"{found.base.name}; {_words(limits.tolerance)} is allowed."
    )
    checks = [_judged("baseline", device.device, allocated, value, why=why, sites=_top(grown, "delta"))]
    if limits.strict_reserved:
        checks.append(_strict(found, limits))
    return checks


def _strict(found: Comparison, limits: Limits) -> Check:
    device, base = found.other.device, found.base.device
    if base.peak_reserved is None or device.peak_reserved is None:
        why = "One of the two files does not tell what was reserved."
        return Check("baseline_reserved", device.device, 0, None, passed=False, why=why)
    limit = _allowed(base.peak_reserved, limits.tolerance)
    value = device.peak_reserved
    grown = found.sites[found.sites["delta"] > 0]
    if found.looser:
        return Check(
            "baseline_reserved",
            device.device,
            limit,
            value,
            passed=False,
            why=f"Allocated and reserved move apart: {found.apart}.",
            sites=tuple(_top(grown, "delta")),
        )
    why = (
        f"The peak of reserved is {format_bytes(value)}, {format_bytes(value - base.peak_reserved)} above that of "
        f"{found.base.name}; {_words(limits.tolerance)} is allowed."
    )
    return _judged("baseline_reserved", device.device, limit, value, why=why, sites=_top(grown, "delta"))


def _allowed(base: int, tolerance: int | float) -> int:
    return base + (int(base * tolerance) if isinstance(tolerance, float) else tolerance)


def _words(tolerance: int | float) -> str:
    return f"{100 * tolerance:.3g}%" if isinstance(tolerance, float) else format_bytes(tolerance)
