"""Results as Markdown that pastes well into a ticket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from snapana.analyses.overview import DeviceOverview, Overview
from snapana.analyses.peak import Peak
from snapana.findings import Finding, verdict
from snapana.frames import rows
from snapana.report.select import Selection, top_sites
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes, format_count

# A ticket wants the head of the table; the rest is in the HTML report.
_ROWS = 8
_STACK_LINES = 12
_MOST_DEVICES = 2

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~&@$])")


def escape(text: str) -> str:
    """Make any text plain in Markdown, also within a table: no markup, no HTML, no line breaks, no mentions."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("\\@", "@\u200b").replace("\\<", "&lt;")


def summary_markdown(results: Overview, found: list[Finding], selection: Selection) -> str:
    """Write the summary in at most 60 lines or so: verdict, figures, table, findings, the first stack folded."""
    snapshot = results.snapshot
    lines = [f"### snapana: {escape(snapshot.info.name)}", ""]
    # All of it is at most 60 lines: several devices share the rows, and only the first shows a stack.
    few = Selection(min(selection.top or _ROWS, max(1, _ROWS // max(len(results.devices), 1))), selection.min_size)
    for device in results.devices[:_MOST_DEVICES]:
        first = device is results.devices[0]
        lines += _device(snapshot, device, found, few if len(results.devices) > 1 else selection, stack=first)
    if len(results.devices) > _MOST_DEVICES:
        lines += [f"{len(results.devices) - _MOST_DEVICES} more devices: see the report.", ""]
    lines += ["**Findings**", ""]
    lines += [
        f"- **{finding.severity}** {escape(finding.code)}: {escape(finding.message)}"
        for finding in found[: _ROWS if len(results.devices) == 1 else _ROWS // 2]
    ]
    lines += ["", f"{format_count(results.events)} events, {escape(snapshot.generation)}"]
    if results.redacted is not None:
        lines[-1] += "; names, folders and texts are redacted"
    return "\n".join(lines)


def _device(
    snapshot: Snapshot, device: DeviceOverview, found: list[Finding], selection: Selection, *, stack: bool
) -> list[str]:
    answer = verdict(device, found)
    name = f"Device {device.device}: " if device.device else ""
    lines = [f"**{name}{escape(answer.title)}**", ""]
    lines += [escape(line) + "  " for line in (answer.filled, answer.cause, answer.action) if line]
    lines += ["", *_figures(device), ""]
    live = device.fatal_oom.live if device.fatal_oom else device.peak
    lines += [*_sites(live, selection), "", *(_stack(snapshot, live) if stack else []), ""]
    return lines


def _figures(device: DeviceOverview) -> list[str]:
    cache = None if device.space is None else device.space.fragmentation
    used = None if cache is None else cache.utilization
    utilization = "unknown" if used is None else f"{used:.1%}"
    return table(
        ("peak allocated", "peak reserved", "end allocated", "unreleasable", "utilization"),
        [
            (
                format_bytes(device.peak.allocated),
                format_bytes(device.peak_reserved),
                format_bytes(device.end.allocated),
                format_bytes(None if cache is None else cache.unreleasable),
                utilization,
            )
        ],
    )


def _sites(live: Peak, selection: Selection) -> list[str]:
    most = _ROWS if selection.top is None else min(_ROWS, selection.top)
    shown, others = top_sites(live.sites, Selection(most, selection.min_size))
    body = [(format_bytes(row.bytes), format_count(row.blocks), escape(row.site)) for row in rows(shown)]
    body += [(format_bytes(others), "", "others"), (format_bytes(live.allocated), "", "**allocated**")]
    return table(("bytes", "blocks", "site"), body)


def _stack(snapshot: Snapshot, live: Peak) -> list[str]:
    """Fold the first site's stack away; empty where it has none."""
    if not len(live.sites) or int(live.sites["stack"].iloc[0]) < 0:
        return []
    text = snapshot.stacks.text(int(live.sites["stack"].iloc[0]), limit=_STACK_LINES)
    # A fence longer than any run of backticks in the text cannot be closed by it.
    longest = max((len(run) for line in text for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [
        f"<details><summary>Stack of {escape(live.sites['site'].iloc[0])}</summary>",
        "",
        fence,
        *(" ".join(line.split()) for line in text),
        fence,
        "",
        "</details>",
    ]


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], *, left: int | None = None) -> list[str]:
    """Write a table whose cells are escaped already: one column, by default the last, is text, the others figures."""
    text = len(heading) - 1 if left is None else left
    kinds = ["---" if number == text else "---:" for number in range(len(heading))]
    return [_row(heading), _row(kinds), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
