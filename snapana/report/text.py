"""Results for a terminal, as rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from snapana.analyses.oom import OutOfMemory
from snapana.analyses.overview import DeviceOverview, Overview
from snapana.analyses.peak import Peak
from snapana.findings import Finding, verdict
from snapana.frames import rows
from snapana.report.select import Selection, top_sites
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes, format_count

_STYLE = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}


def print_summary(results: Overview, found: list[Finding], selection: Selection) -> None:
    """Print the whole summary on stdout."""
    console = _console()
    snapshot = results.snapshot
    console.print(
        Text(f"{snapshot.info.name}: {format_count(len(snapshot.events))} events, written by {snapshot.generation}")
    )
    for device in results.devices:
        _heading(console, f"Device {device.device}" if len(results.devices) > 1 else "Verdict")
        answer = verdict(device, found)
        console.print(Text(answer.title, style="bold"))
        for line in (answer.filled, answer.cause, answer.action):
            if line:
                console.print(Text(line))
        for name in ("peak", "fragmentation", "leaks", "oom"):
            _PARTS[name](console, snapshot, device, selection)
        _window(console, device)
    if found:
        _heading(console, "Findings")
    for finding in found:
        console.print(Text(f"{finding.severity:<7}", style=_STYLE[finding.severity]), end="")
        console.print(Text(f"{finding.code}  {finding.message}"))
        if finding.advice:
            console.print(Text(f"        {finding.advice}", style="dim"))


def print_part(results: Overview, name: str, selection: Selection) -> None:
    """Print one part, ``peak``, ``fragmentation``, ``leaks`` or ``oom``, of every device."""
    console = _console()
    for device in results.devices:
        if len(results.devices) > 1:
            _heading(console, f"Device {device.device}")
        _PARTS[name](console, results.snapshot, device, selection)


def _console() -> Console:
    console = Console(highlight=False)
    # Redirected output has no width of its own: do not fold tables at 80 columns.
    return console if console.is_terminal else Console(highlight=False, width=160)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold underline"))


def _table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]], *, foot: int = 0) -> Table:
    """Build a table; ``columns`` are (heading, is a number), the last ``foot`` rows stand apart."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading, number in columns:
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    lines = list(rows)
    for position, row in enumerate(lines):
        table.add_row(*(Text(cell) for cell in row), style="dim" if position >= len(lines) - foot else "")
    return table


def _sites(console: Console, live: Peak, selection: Selection) -> None:
    shown, others = top_sites(live.sites, selection)
    total = max(live.allocated, 1)
    body = [
        (format_bytes(row.bytes), f"{row.bytes / total:.1%}", format_count(row.blocks), row.site) for row in rows(shown)
    ]
    body.append((format_bytes(others), f"{others / total:.1%}", "", f"others ({len(live.sites) - len(shown)} sites)"))
    body.append((format_bytes(live.allocated), "100.0%" if live.allocated else "", "", "allocated"))
    console.print(_table([("bytes", True), ("share", True), ("blocks", True), ("site", False)], body, foot=2))


def _peak(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    _heading(console, "Peak")
    live = device.peak
    console.print(
        Text(
            f"{format_bytes(live.allocated)} allocated at event {format_count(live.event)}, "
            f"{format_bytes(live.requested)} requested, {format_bytes(live.reserved)} reserved; "
            f"highest reserved {format_bytes(device.peak_reserved)}, at the end "
            f"{format_bytes(device.end.allocated)} allocated."
        )
    )
    _sites(console, live, selection)


def _fragmentation(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    cache = device.fragmentation
    _heading(console, "Fragmentation, where most was reserved")
    used = f", utilization {cache.utilization:.1%}" if cache.utilization is not None else ""
    console.print(Text(f"{format_bytes(cache.reserved)} reserved, {format_bytes(cache.cached)} of it cached{used}."))
    console.print(
        Text(
            f"{format_bytes(cache.releasable)} releasable, {format_bytes(cache.unreleasable)} unreleasable, "
            f"{format_bytes(cache.pool_held)} held by private pools; {format_bytes(cache.internal_waste)} lost to "
            "rounding."
        )
    )
    body = [
        (
            format_bytes(row.reserved),
            format_bytes(row.free),
            format_bytes(row.largest_hole),
            f"{row.external:.0%}" if row.free else "-",
            f"{snapshot.pools[row.pool]} stream {row.stream} {row.size_class}",
        )
        for row in rows(cache.pools)
    ]
    columns = [
        ("reserved", True),
        ("free", True),
        ("largest hole", True),
        ("external", True),
        ("pool", False),
    ]
    console.print(_table(columns, body))
    pins = cache.pins if selection.top is None else cache.pins.head(selection.top)
    if len(pins):
        console.print()
        kept = [
            (format_bytes(row.pinned), format_count(row.segments), format_bytes(row.block_bytes), row.site)
            for row in rows(pins)
        ]
        columns = [("keeps", True), ("segments", True), ("with blocks of", True), ("pinned by", False)]
        console.print(_table(columns, kept))


def _leaks(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    _heading(console, "Growth")
    found = device.leaks
    if not found.judged:
        console.print(
            Text(
                f"Not judged: {len(device.steps)} steps found. Steps come from Optimizer.step and ProfilerStep marks; "
                "four are needed."
            )
        )
        return
    if not len(found.table):
        console.print(Text(f"No site grows over {found.steps} steps ({device.steps.source})."))
        return
    body = [
        (
            format_bytes(row.bytes_per_step),
            f"{row.blocks_per_step:.3g}",
            format_bytes(row.block_bytes_per_step),
            f"{row.confidence:.0%}",
            row.site,
        )
        for row in rows(found.table)
    ]
    columns = [
        ("requested a step", True),
        ("blocks a step", True),
        ("occupied a step", True),
        ("confidence", True),
        ("site", False),
    ]
    console.print(_table(columns, body))


def _oom(console: Console, snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> None:
    _heading(console, "Out of memory")
    if not device.oom:
        console.print(
            Text(
                "No failed allocation in the window. A file written before the failure, by another process, or "
                "whose ring has passed it would look the same."
            )
        )
        return
    for failure in device.oom:
        _failure(console, failure, selection)


def _failure(console: Console, failure: OutOfMemory, selection: Selection) -> None:
    title = f"Event {format_count(failure.event)}: {failure.verdict.replace('_', ' ')}"
    console.print(Text(title, style="bold"))
    console.print(Text(f"Asked by {failure.site.label}."))
    for reason in failure.reasons:
        console.print(Text(f"- {reason}"))
    _sites(console, failure.live, selection)


def _window(console: Console, device: DeviceOverview) -> None:
    window = device.coverage
    _heading(console, "Window")
    if window.complete:
        console.print(Text(f"Complete: {format_count(window.events)} events from the first allocation on."))
        return
    console.print(
        Text(
            f"{format_count(window.events)} events; {format_bytes(window.preexisting_bytes)} existed before, "
            f"{format_count(window.unmatched_frees)} frees without an allocation, "
            f"{format_count(window.replay_mismatches)} mismatches."
        )
    )


_PARTS = {"peak": _peak, "fragmentation": _fragmentation, "leaks": _leaks, "oom": _oom}
