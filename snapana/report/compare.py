"""Comparisons as text, Markdown, JSON and an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from rich.text import Text

from snapana._version import __version__
from snapana.analyses.compare import Comparison, Side, percent, verdict_lines
from snapana.analyses.overview import DeviceOverview
from snapana.analyses.sites import site_codes
from snapana.frames import rows
from snapana.report.contract import SCHEMA, device_object, input_object, settings_object
from snapana.report.html import redacted_line
from snapana.report.markdown import escape, table
from snapana.report.payload import payload, script
from snapana.report.select import Selection, limited
from snapana.report.templates import environment
from snapana.report.terminal import plain_console, text_table, write_heading
from snapana.units import format_bytes

FloatArray = npt.NDArray[np.float64]

AXES = ("step", "time", "fraction")
_MARKDOWN_ROWS = 8
_MOST_SIZES = 12


# ---- JSON


def compare_document(found: Sequence[Comparison], selection: Selection) -> dict[str, Any]:
    """Give the JSON document: of two runs as the contract has it, of more with one object for each in ``runs``."""
    head = {"snapana": {"version": __version__, "schema": SCHEMA}, "base": _side(found[0].base, selection)}
    redacted = found[-1].other.results.redacted
    if redacted is not None:
        head["redacted"] = redacted
    if len(found) == 1:
        return {**head, **_run(found[0], selection)}
    return {**head, "runs": [_run(one, selection) for one in found]}


def _side(side: Side, selection: Selection) -> dict[str, Any]:
    whole = device_object(side.snapshot, side.device, selection)
    kept = ("device", "window", "peak", "peak_reserved", "end", "fragmentation", "categories", "churn", "leaks")
    space = whole["fragmentation"]
    return {
        "input": input_object(side.results),
        "settings": settings_object(side.snapshot),
        **{name: whole[name] for name in kept},
        "fragmentation": None if space is None else {name: value for name, value in space.items() if name != "course"},
        "steps": len(side.device.steps),
    }


def _run(found: Comparison, selection: Selection) -> dict[str, Any]:
    lines = verdict_lines(found)
    histograms = _histograms(found)
    return {
        "other": _side(found.other, selection),
        "delta": {
            "peak_allocated_bytes": found.peak_allocated if found.peaks_known else None,
            "peak_reserved_bytes": found.peak_reserved if found.peaks_known else None,
            "peak_requested_bytes": found.peak_requested if found.peaks_known else None,
            "end_allocated_bytes": found.end_allocated,
            "categories": {f"{row.category}_bytes": int(row.delta) for row in rows(found.categories)},
        },
        "sites": [_site(row, histograms) for row in rows(found.sites)],
        "settings": [{"name": name, "base": mine, "other": yours} for name, mine, yours in found.settings],
        "batch_ratio": found.batch,
        "identical": found.identical,
        "apart": found.apart or None,
        "notes": list(found.notes),
        "verdict": " ".join(lines),
    }


def _site(row: Any, histograms: _Histograms) -> dict[str, Any]:
    return {
        "site": row.site,
        "base_site": row.base_site or None,
        "file": row.file or None,
        "line": int(row.line) or None,
        "function": row.function or None,
        "category": row.category or None,
        "base_bytes": int(row.base_bytes),
        "other_bytes": int(row.other_bytes),
        "delta_bytes": int(row.delta),
        "base_blocks": int(row.base_blocks),
        "other_blocks": int(row.other_blocks),
        "base_largest_block_bytes": int(row.base_largest),
        "other_largest_block_bytes": int(row.other_largest),
        "block_sizes": _sizes(histograms, row),
        "status": row.status,
        "why": row.why,
    }


# ---- text and Markdown


def print_comparisons(found: Sequence[Comparison], selection: Selection) -> None:
    """Print two runs side by side, or a table of more."""
    out = plain_console()
    for one in found:
        for line in verdict_lines(one):
            out.print(Text(line, style="bold" if line == verdict_lines(one)[0] else ""))
    out.print()
    sides = [found[0].base, *(one.other for one in found)]
    columns = [("", False), *((side.name, True) for side in sides)]
    if len(found) == 1:
        columns.append(("difference", True))
    out.print(text_table(columns, _figures(found)))
    for one in found:
        if one.identical:
            continue
        write_heading(
            out, f"What differs at the peak of {one.other.name}" if len(found) > 1 else "What differs at the peak"
        )
        head = [("difference", True), (one.base.name, True), (one.other.name, True), ("blocks", True)]
        out.print(text_table([*head, ("why", False), ("site", False)], _site_rows(one, selection), foot=2))
    for note in dict.fromkeys(note for one in found for note in one.notes):
        out.print(Text(note, style="dim"))


def comparison_markdown(found: Sequence[Comparison], selection: Selection) -> str:
    """Write the comparison for a ticket: at most 60 lines for two runs."""
    few = Selection(min(selection.top or _MARKDOWN_ROWS, _MARKDOWN_ROWS), selection.min_size)
    sides = [found[0].base, *(one.other for one in found)]
    lines = [f"### snapana: {' against '.join(escape(side.name) for side in sides[:2])}", ""]
    for one in found:
        lines += [f"{escape(line.replace('`', ''))}  " for line in verdict_lines(one)]
    heading = ["", *(escape(side.name) for side in sides)]
    heading += ["difference"] if len(found) == 1 else []
    lines += ["", *table(heading, [[escape(cell) for cell in row] for row in _figures(found)], left=0), ""]
    for one in found:
        if one.identical:
            continue
        body = [[escape(cell) for cell in row] for row in _site_rows(one, few)]
        head = ("difference", escape(one.base.name), escape(one.other.name), "blocks", "why", "site")
        inner = table(head, body)
        lines += [f"<details><summary>What differs at the peak of {escape(one.other.name)}</summary>", "", *inner, ""]
        lines += ["</details>", ""]
    lines += [f"{escape(note)}  " for note in dict.fromkeys(note for one in found for note in one.notes)]
    return "\n".join(lines)


def _figures(found: Sequence[Comparison]) -> list[list[str]]:
    """Give the table of figures: a row each, the difference last where there are two runs."""
    sides = [found[0].base, *(one.other for one in found)]
    table_rows = []
    for name, figure, is_bytes in _FIGURES:
        values = [figure(side.device) for side in sides]
        if all(value is None for value in values):
            continue
        cells = [_cell(value, is_bytes) for value in values]
        if len(found) == 1:
            cells.append(_difference(values[0], values[1], is_bytes))
        table_rows.append([name, *cells])
    for number, name in enumerate(sides[0].device.categories.bytes):
        sizes = [list(side.device.categories.bytes.values())[number] for side in sides]
        if any(sizes):
            cells = [format_bytes(size) for size in sizes]
            if len(found) == 1:
                cells.append(_difference(sizes[0], sizes[1], is_bytes=True))
            table_rows.append([f"{name} at the peak", *cells])
    for name in dict.fromkeys(name for one in found for name, _, _ in one.settings):
        values = [next((mine for other, mine, _ in one.settings if other == name), None) for one in found]
        base = next(value for value in values if value is not None)
        theirs = [next((yours for other, _, yours in one.settings if other == name), base) for one in found]
        table_rows.append([name, base, *theirs, *([""] if len(found) == 1 else [])])
    return table_rows


def _cell(value: float | None, is_bytes: bool) -> str:
    if value is None:
        return "unknown"
    if is_bytes:
        return format_bytes(value)
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


def _difference(base: float | None, other: float | None, is_bytes: bool) -> str:
    if base is None or other is None:
        return ""
    if base == other:
        return "none"
    if not is_bytes:
        return ""
    sign = "+" if other > base else "-"
    share = f" ({percent(other / base - 1)})" if base else ""
    return f"{sign}{format_bytes(abs(other - base))}{share}"


def _utilization(device: DeviceOverview) -> float | None:
    return None if device.space is None else device.space.fragmentation.utilization


def _unreleasable(device: DeviceOverview) -> int | None:
    return None if device.space is None else device.space.fragmentation.unreleasable


def _leaked(device: DeviceOverview) -> float | None:
    return float(device.leaks.table["bytes_per_step"].sum()) if device.leaks.judged else None


def _segments(device: DeviceOverview) -> int | None:
    return None if device.space is None else device.space.churn.segment_allocs


def _calls(device: DeviceOverview) -> int | None:
    return None if device.space is None else device.space.churn.empty_cache_calls


_FIGURES: tuple[tuple[str, Any, bool], ...] = (
    ("peak allocated", lambda device: device.peak.allocated, True),
    ("peak requested", lambda device: device.peak.requested, True),
    ("peak reserved", lambda device: device.peak_reserved, True),
    ("allocated at the end", lambda device: device.end.allocated, True),
    ("unreleasable at peak reserved", _unreleasable, True),
    ("utilization at peak reserved", _utilization, False),
    ("leaks a step", _leaked, True),
    ("segments made", _segments, False),
    ("empty_cache() calls", _calls, False),
    ("out of memory", lambda device: device.oom_events, False),
    ("steps", lambda device: len(device.steps), False),
    ("events", lambda device: device.coverage.events, False),
    ("existed before the recording", lambda device: device.coverage.preexisting_bytes, True),
)


def _site_rows(found: Comparison, selection: Selection) -> list[list[str]]:
    differ = found.sites[found.sites["delta"] != 0]
    shown = limited(differ[differ["delta"].abs() >= selection.min_size], selection)
    body = [
        [
            _signed(int(row.delta)),
            format_bytes(int(row.base_bytes)),
            format_bytes(int(row.other_bytes)),
            f"{row.base_blocks:,} to {row.other_blocks:,}"
            if row.base_blocks != row.other_blocks
            else f"{row.base_blocks:,}",
            ", ".join(part for part in (_STATUS[row.status], row.why) if part),
            row.site + (f" (was {row.base_site})" if row.status == "moved" else ""),
        ]
        for row in rows(shown)
    ]
    rest = [int(found.sites[name].sum() - shown[name].sum()) for name in _SUMS]
    body.append([_signed(rest[0]), *map(format_bytes, rest[1:]), "", "", "others"])
    all_of = [int(found.sites[name].sum()) for name in _SUMS]
    body.append([_signed(all_of[0]), *map(format_bytes, all_of[1:]), "", "", "allocated in all"])
    return body


_SUMS = ("delta", "base_bytes", "other_bytes")
_STATUS = {"same": "", "moved": "moved", "new": "new", "gone": "gone"}


def _signed(size: int) -> str:
    return f"+{format_bytes(size)}" if size > 0 else format_bytes(size)


# ---- the page


def render_comparison(
    found: Sequence[Comparison], selection: Selection, axis: str | None = None, folded: str = ""
) -> str:
    """Write the page of a comparison.

    Args:
        found: comparisons with the same base.
        selection: size of the tables.
        axis: one of ``AXES``; by default steps where all runs have some, else the fraction of the window.
        folded: what was left out to keep the page small, in a sentence.

    """
    from snapana.report.charts import comparison_curve

    sides = [found[0].base, *(one.other for one in found)]
    counted, curves = _curves(sides, axis)
    explorers = _explorers(sides)
    page = environment().get_template("compare.html.j2")
    return page.render(
        version=__version__,
        sides=sides,
        figures=_figures(found),
        several=len(found) > 1,
        explorers=explorers,
        script=script() if explorers else None,
        chart=Markup(comparison_curve(curves, counted)) if curves else None,
        runs=[page_run(one, selection) for one in found],
        notes=list(dict.fromkeys(note for one in found for note in one.notes)),
        redacted=redacted_line(found[-1].other.results.redacted),
        folded=folded,
    )


def _explorers(sides: Sequence[Side]) -> list[dict[str, str]]:
    """Give both sides of a comparison of two for exploring; nothing where one has no events."""
    packed = [payload(side.snapshot, side.device) for side in sides] if len(sides) == 2 else [None]
    if not all(packed):
        return []
    return [{"name": side.name, "payload": str(text)} for side, text in zip(sides, packed, strict=True)]


def page_run(found: Comparison, selection: Selection) -> dict[str, Any]:
    """Prepare one comparison for a page."""
    differ = found.sites[found.sites["delta"] != 0]
    shown = limited(differ[differ["delta"].abs() >= selection.min_size], selection)
    most = max(int(found.sites["delta"].abs().max()) if len(found.sites) else 0, 1)
    histograms = _histograms(found)
    return {
        "found": found,
        "lines": [_with_code(line) for line in verdict_lines(found)],
        "most": most,
        "rows": [
            {
                **row._asdict(),
                "stack": _stack(found, row),
                "share": abs(row.delta) / most,
                "sizes": _sizes(histograms, row),
            }
            for row in rows(shown)
        ],
        "others": {name: int(found.sites[name].sum() - shown[name].sum()) for name in _SUMS},
        "all": {name: int(found.sites[name].sum()) for name in _SUMS},
    }


def _with_code(line: str) -> Markup:
    """Mark names between backticks as code."""
    parts = line.split("`")
    marked = [
        Markup("<code>{}</code>").format(part) if at % 2 else Markup("{}").format(part) for at, part in enumerate(parts)
    ]
    return Markup("").join(marked)


def _stack(found: Comparison, row: Any) -> list[str]:
    side, code = (found.other, row.other_code) if row.other_blocks else (found.base, row.base_code)
    sites = side.device.peak.sites
    return side.snapshot.stacks.text(int(sites.loc[sites["code"] == code, "stack"].iloc[0]), limit=60)


_Histograms = tuple[dict[int, dict[int, int]], dict[int, dict[int, int]]]


def _histograms(found: Comparison) -> _Histograms:
    """Count blocks by site and requested size at the peak of each side."""

    def count(side: Side) -> dict[int, dict[int, int]]:
        live = side.snapshot.replay[side.device.device].live(side.device.peak.event)
        codes = site_codes(side.snapshot, live)
        counts: dict[int, dict[int, int]] = {}
        for code, size in zip(codes.tolist(), live["requested"].tolist(), strict=True):
            own = counts.setdefault(code, {})
            own[size] = own.get(size, 0) + 1
        return counts

    return count(found.base), count(found.other)


def _sizes(histograms: _Histograms, row: Any) -> list[dict[str, int]]:
    """Give how many blocks of which requested size a site has at each peak, the largest first."""
    counts: dict[int, list[int]] = {}
    for place, (histogram, code) in enumerate(zip(histograms, (row.base_code, row.other_code), strict=True)):
        for size, number in histogram.get(int(code), {}).items():
            counts.setdefault(size, [0, 0])[place] = number
    largest = sorted(counts.items(), reverse=True)[:_MOST_SIZES]
    return [{"bytes": size, "base_blocks": both[0], "other_blocks": both[1]} for size, both in largest]


def _curves(sides: Sequence[Side], axis: str | None) -> tuple[str, list[tuple[str, FloatArray, Any, Any]]]:
    """Place the curves of all runs on one axis."""
    if not all(side.device.coverage.events for side in sides):
        return "", []
    if axis is None:
        axis = "step" if all(len(side.device.steps) > 1 for side in sides) else "fraction"
    found = []
    for side in sides:
        replay = side.snapshot.replay[side.device.device]
        reserved = None if side.device.peak_reserved is None else replay.curves["reserved"].to_numpy()
        allocated = np.maximum(replay.curves["allocated"].to_numpy(), 0)
        found.append((side.name, _places(side, axis, len(allocated)), allocated, reserved))
    return {"step": "step", "time": "seconds", "fraction": "share of the window, by events"}[axis], found


def _places(side: Side, axis: str, count: int) -> FloatArray:
    """Give the place of each event on the axis; the state before the first comes with it."""
    events = np.arange(count, dtype=np.float64)
    if axis == "time":
        times = side.snapshot.replay[side.device.device].events["time_us"].to_numpy()
        if len(times) and int(times[0]) >= 0:
            since: FloatArray = (np.concatenate([times[:1], times]) - times[0]) / 1e6
            return since
    if axis == "step" and len(side.device.steps):
        ends = side.device.steps.table["end_event"].to_numpy(dtype=np.float64) + 1
        ends = ends[np.append(True, np.diff(ends) > 0)]
        placed: FloatArray = np.interp(events, np.append(0.0, ends), np.arange(len(ends) + 1, dtype=np.float64))
        # What follows the last step goes on at the pace of the steps.
        beyond = events > ends[-1]
        placed[beyond] = len(ends) + (events[beyond] - ends[-1]) * len(ends) / max(ends[-1], 1.0)
        return placed
    return events / max(count - 1, 1)
