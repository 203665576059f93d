"""Pictures as inline SVG: matplotlib draws, the page's CSS colours.

Every colour given to matplotlib is a stand-in that is replaced by a CSS variable, so that one picture serves
light and dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from snapana.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Stand-in for matplotlib -> what the page's CSS says.
_INK, _FAINT = "#010101", "#020202"
_PAINT = {
    _INK: "currentColor",
    _FAINT: "var(--line)",
    "#030303": "var(--allocated)",
    "#040404": "var(--reserved)",
    "#050505": "var(--active)",
    "#060606": "var(--bad)",
    "#070707": "var(--kept)",
    **{f"#0800{number:02x}": f"var(--c{number})" for number in range(8)},
    "#0900ff": "var(--cx)",
}
_RUNS = tuple(f"#0800{number:02x}" for number in range(8))
_BAND = {**{f"c{number}": f"#0800{number:02x}" for number in range(8)}, "cx": "#0900ff"}
_ALLOCATED, _RESERVED, _ACTIVE, _BAD, _KEPT = "#030303", "#040404", "#050505", "#060606", "#070707"

# Buckets along x: each keeps its lowest and highest value, so no peak is lost.
_BUCKETS = 400


@dataclass(frozen=True)
class Mark:
    """A point of the curve to name.

    Attributes:
        event: index in the trace.
        label: short text.
        bad: drawn as a failure.

    """

    event: int
    label: str
    bad: bool = False


def thin(values: IntArray, keep: Iterable[int] = (), buckets: int = _BUCKETS) -> IntArray:
    """Choose positions that draw a curve: of each bucket the first, lowest, highest and last, and ``keep``."""
    if len(values) <= 4 * buckets:
        return np.arange(len(values), dtype=np.int64)
    edges = np.linspace(0, len(values), buckets + 1).astype(np.int64)
    chosen: set[int] = {*edges[:-1].tolist(), *(edges[1:] - 1).tolist(), *keep}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[low:high]
        chosen |= {low + int(part.argmin()), low + int(part.argmax())}
    return np.array(sorted(chosen), dtype=np.int64)


def fullest(values: IntArray, stretches: int) -> IntArray:
    """Choose the position of the highest value of each of so many stretches, in order."""
    edges = np.unique(np.linspace(0, len(values), stretches + 1).astype(np.int64))
    return np.array([int(low) + int(values[low:high].argmax()) for low, high in pairwise(edges)], dtype=np.int64)


def memory_curve(curves: dict[str, IntArray], marks: Sequence[Mark], steps: Sequence[int] = (), note: str = "") -> str:
    """Draw allocated, active and reserved over the events of the window.

    Over time, seconds of loading and waiting would press all that happens into a corner.

    Args:
        curves: bytes after each event, the first before event 0: ``allocated``, ``active`` and, where
            known, ``reserved``.
        marks: events to name.
        steps: events at which steps end.
        note: added to the label of the x axis.

    Returns:
        An ``<svg>`` element.

    """
    x = np.arange(-1, len(curves["allocated"]) - 1, dtype=np.float64)
    figure, axes = _figure(10, 3.4)
    top = max(1, *(int(values.max()) for values in curves.values()))
    scale, unit = _scale(top)
    for step in steps:
        axes.axvline(x[step + 1], color=_FAINT, linewidth=0.6, zorder=0)
    keep = [mark.event + 1 for mark in marks]
    at = thin(curves["allocated"], keep)
    axes.fill_between(
        x[at], curves["allocated"][at] / scale, step="post", color=_ALLOCATED, alpha=0.25, linewidth=0, zorder=1
    )
    axes.step(x[at], curves["allocated"][at] / scale, where="post", color=_ALLOCATED, linewidth=1.0, label="allocated")
    if _waiting(curves) > top // 200:
        at = thin(curves["active"])
        axes.step(x[at], curves["active"][at] / scale, where="post", color=_ACTIVE, linewidth=1.0, label="active")
    if "reserved" in curves:
        at = thin(curves["reserved"])
        axes.step(x[at], curves["reserved"][at] / scale, where="post", color=_RESERVED, linewidth=1.4, label="reserved")
    axes.set_ylim(0, top / scale * 1.22)
    axes.set_xlim(x[0], x[-1] if x[-1] > x[0] else x[0] + 1)
    axes.set_xlabel(f"event{note}", color=_INK)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    axes.set_ylabel(unit, color=_INK)
    _place_marks(axes, x, curves["allocated"] / scale, marks, top / scale)
    axes.legend(loc="upper left", frameon=False, ncols=3, labelcolor=_INK, fontsize=9, borderaxespad=0.2)
    return _svg(figure, "Bytes allocated and reserved over the window")


def comparison_curve(curves: Sequence[tuple[str, FloatArray, IntArray, IntArray | None]], axis: str) -> str:
    """Draw what two or more runs allocated and reserved over a common axis.

    Args:
        curves: for each run its name, the place of each value on the axis, allocated and, where known, reserved bytes.
        axis: what the axis counts.

    Returns:
        An ``<svg>`` element.

    """
    figure, axes = _figure(10, 3.4)
    top = max(1, *(int(values.max()) for _, _, *both in curves for values in both if values is not None))
    scale, unit = _scale(top)
    for number, (name, x, allocated, reserved) in enumerate(curves):
        # Dollars would begin a formula.
        name = name.replace("$", r"\$")
        # A legend leaves out what begins with an underscore.
        name = f" {name}" if name.startswith("_") else name
        colour = _RUNS[number % len(_RUNS)]
        for values, style, what in ((allocated, "-", "allocated"), (reserved, (0, (4, 2)), "reserved")):
            if values is None:
                continue
            at = thin(values)
            axes.step(
                x[at],
                values[at] / scale,
                where="post",
                color=colour,
                linewidth=1.1,
                linestyle=style,
                label=f"{name}, {what}",
            )
    axes.set_ylim(0, top / scale * 1.25)
    axes.set_xlabel(axis, color=_INK)
    axes.set_ylabel(unit, color=_INK)
    axes.legend(loc="upper left", frameon=False, ncols=2, labelcolor=_INK, fontsize=8.5, borderaxespad=0.2)
    return _svg(figure, "Bytes allocated and reserved, run beside run")


def _waiting(curves: dict[str, IntArray]) -> int:
    """Give the most bytes that waited for another stream; a free that completes at once waits one event."""
    pending = curves["active"] - curves["allocated"]
    return int(np.minimum(pending[:-1], pending[1:]).max(initial=0))


def _place_marks(
    axes: Axes,
    x: npt.NDArray[np.float64],
    y: npt.NDArray[np.float64],
    marks: Sequence[Mark],
    top: float,
) -> None:
    """Name the points; labels of neighbours are put on lines of their own."""
    span = float(x[-1] - x[0]) or 1.0
    for number, mark in enumerate(marks):
        place = float(x[mark.event + 1])
        colour = _BAD if mark.bad else _INK
        if mark.bad:
            axes.axvline(place, color=_BAD, linewidth=1.2, linestyle=(0, (4, 2)))
        axes.plot([place], [y[mark.event + 1]], "o", color=colour, markersize=4, zorder=5)
        right = (place - float(x[0])) / span > 0.5
        axes.annotate(
            mark.label,
            (place, y[mark.event + 1]),
            xytext=(place, top * (1.04 + 0.09 * (number % 2))),
            ha="right" if right else "left",
            va="bottom",
            color=colour,
            fontsize=9,
            annotation_clip=False,
        )


def step_chart(values: IntArray, births: IntArray, label: str) -> str:
    """Draw a site's live bytes at each step's end, over how many blocks of each step are left, as an ``<svg>``."""
    figure, axes = _figure(4.2, 1.7)
    scale, unit = _scale(int(values.max(initial=1)))
    steps = np.arange(len(values))
    counts = axes.twinx()
    counts.spines[["top", "left", "bottom", "right"]].set_visible(False)
    counts.bar(steps, births, color=_RESERVED, alpha=0.35, width=0.8)
    counts.set_ylim(0, max(int(births.max(initial=1)), 1) * 3)
    counts.set_yticks([])
    axes.plot(steps, values / scale, color=_ALLOCATED, linewidth=1.4, marker="o", markersize=2.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step; bars: blocks of each step that are left", color=_INK, fontsize=8)
    axes.set_ylabel(unit, color=_INK, fontsize=8)
    return _svg(figure, label)


def _scale(top: int) -> tuple[int, str]:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if top >= 1024**power:
            return int(1024**power), unit
    return 1, "B"


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.add_subplot(facecolor="none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=8.5, color=_FAINT)
    axes.grid(axis="y", color=_FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    return figure, axes


def _svg(figure: Any, label: str) -> str:
    """Write a figure as one element without ids of its own, dates or fixed colours."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    canvas: Any = FigureCanvasSVG(figure)
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": f"snapana {label}", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    for stand_in, paint in _PAINT.items():
        text = text.replace(stand_in, paint)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--sans)", text)
    text = re.sub(r"(<path d=\"[^\"]*\")", _shorten, text)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found.group(0) if found.group(1) in used else "", text)
    head = re.match(r"<svg[^>]*viewBox=\"([^\"]+)\"[^>]*>", text)
    if head is None:
        raise ValueError("matplotlib wrote no viewBox")
    start = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{head.group(1)}" role="img"'
    start += f' aria-label="{_plain(label)}">'
    return start + text[head.end() :].strip()


def _shorten(found: re.Match[str]) -> str:
    """Round to a tenth of a point, finer than any screen, and drop the white space."""
    rounded = re.sub(r"(\d+\.\d)\d+", r"\1", found.group(1))
    return re.sub(r"\s*\n\s*|(?<=[MLz]) ", "", rounded)


def _plain(text: str) -> str:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        text = text.replace(char, entity)
    return text


def stacked_areas(
    events: IntArray, bands: IntArray, names: Sequence[str], styles: Sequence[str], steps: Sequence[int] = ()
) -> str:
    """Draw what was allocated as bands on top of each other, as an ``<svg>`` element.

    Args:
        events: instants, ascending.
        bands: bytes of each band at each: shape (names, events).
        names: of the bands, from the lowest.
        styles: their colours: ``c0`` to ``c7`` or ``cx``, as the page's CSS has them.
        steps: events at which steps end.

    """
    figure, axes = _figure(10, 3.2)
    scale, unit = _scale(int(bands.sum(axis=0).max(initial=1)))
    for step in steps:
        axes.axvline(step, color=_FAINT, linewidth=0.6, zorder=0)
    below = np.zeros(len(events))
    for style, band in zip(styles, bands, strict=True):
        top = below + band / scale
        axes.fill_between(events, below, top, step="post", color=_BAND[style], linewidth=0)
        below = top
    axes.set_ylim(0, float(below.max(initial=0)) * 1.04 or 1)
    axes.set_xlim(events[0], max(int(events[-1]), int(events[0]) + 1))
    axes.set_xlabel("event", color=_INK)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    axes.set_ylabel(unit, color=_INK)
    return _svg(figure, f"Allocated over the window: {', '.join(names)}")


def fragmentation_curve(event: IntArray, utilization: npt.NDArray[np.float64], hole: IntArray, kept: IntArray) -> str:
    """Draw how fragmentation went on, as an ``<svg>`` element.

    Args:
        event: instants.
        utilization: active / reserved at each; NaN where nothing is reserved.
        hole: bytes of the largest hole.
        kept: unreleasable bytes.

    """
    figure, axes = _figure(10, 2.6)
    top = max(int(hole.max(initial=0)), int(kept.max(initial=0)), 1)
    scale, unit = _scale(top)
    axes.step(event, kept / scale, where="post", color=_KEPT, linewidth=1.4, label="unreleasable")
    axes.step(event, hole / scale, where="post", color=_ACTIVE, linewidth=1.2, label="largest hole")
    axes.set_ylim(0, top / scale * 1.3)
    axes.set_xlim(event[0], max(event[-1], event[0] + 1))
    axes.set_ylabel(unit, color=_INK)
    axes.set_xlabel("event", color=_INK)
    axes.xaxis.set_major_formatter(lambda value, position: f"{value:,.0f}")
    right = axes.twinx()
    right.spines[["top", "left", "bottom"]].set_visible(False)
    right.spines["right"].set_color(_FAINT)
    right.tick_params(colors=_INK, labelsize=8.5, color=_FAINT)
    right.step(event, utilization * 100, where="post", color=_INK, linewidth=0.8, linestyle=(0, (3, 2)))
    right.set_ylim(0, 130)
    right.set_yticks([0, 25, 50, 75, 100])
    right.set_ylabel("active / reserved, %", color=_INK)
    axes.plot([], [], color=_INK, linewidth=0.8, linestyle=(0, (3, 2)), label="utilization")
    axes.legend(loc="upper left", frameon=False, ncols=3, labelcolor=_INK, fontsize=9, borderaxespad=0.2)
    return _svg(figure, "Unreleasable bytes, largest hole and utilization over the window")


# ---- the map of segments

_MAP_WIDTH = 1000
_ROW, _GAP = 11, 4
# Blocks narrower than this share of the map's width are drawn and named together with their neighbours.
_NARROW = 2.0


@dataclass(frozen=True)
class MapBlock:
    """One block to draw.

    Attributes:
        offset: bytes from the start of the segment.
        size: bytes.
        style: CSS class: ``c0`` to ``c7`` for sites, ``cx`` for others, ``pending``.
        label: what it is.
        pin: whether it alone keeps its segment or page.

    """

    offset: int
    size: int
    style: str
    label: str
    pin: bool = False


@dataclass(frozen=True)
class MapRow:
    """One segment to draw.

    Attributes:
        size: bytes of the segment.
        label: what a pointer that rests on it reads.
        blocks: in order of their offset.

    """

    size: int
    label: str
    blocks: Sequence[MapBlock]


def segment_map(drawn: Sequence[MapRow]) -> str:
    """Draw segments as bars to one scale, free parts open, as an ``<svg>`` element; each block has a title."""
    largest = max((row.size for row in drawn), default=1)
    scale = _MAP_WIDTH / max(largest, 1)
    height = len(drawn) * (_ROW + _GAP) + _GAP
    parts = [
        f'<svg class="map" viewBox="0 0 {_MAP_WIDTH} {height}" role="img" '
        f'aria-label="Map of {len(drawn)} segments: filled is allocated, open is free">'
    ]
    for number, row in enumerate(drawn):
        y = _GAP + number * (_ROW + _GAP)
        parts.append(
            f'<rect class="hole" x="0" y="{y}" width="{row.size * scale:.1f}" height="{_ROW}">'
            f"<title>{_plain(row.label)}</title></rect>"
        )
        parts += [_bar(group, scale, y) for group in _groups(row.blocks, scale)]
    parts.append("</svg>")
    return "".join(parts)


def _groups(blocks: Sequence[MapBlock], scale: float) -> list[list[MapBlock]]:
    """Fold blocks too narrow to see into one with their neighbours, whatever their colour."""
    groups: list[list[MapBlock]] = []
    for block in blocks:
        last = groups[-1] if groups else None
        if last is not None:
            gap = (block.offset - last[-1].offset - last[-1].size) * scale
            width = (block.offset + block.size - last[0].offset) * scale
            if gap < 0.3 and width < _NARROW:
                last.append(block)
                continue
        groups.append([block])
    return groups


def _bar(group: list[MapBlock], scale: float, y: int) -> str:
    first, last = group[0], group[-1]
    largest = max(group, key=lambda block: block.size)
    low = first.offset * scale
    width = max((last.offset + last.size - first.offset) * scale, 0.5)
    size = sum(block.size for block in group)
    label = first.label if len(group) == 1 else f"{len(group)} blocks, {format_bytes(size)}: {largest.label}"
    pin = " pin" if any(block.pin for block in group) else ""
    return (
        f'<rect class="{largest.style}{pin}" x="{low:.1f}" y="{y}" width="{width:.1f}" height="{_ROW}">'
        f"<title>{_plain(label)}</title></rect>"
    )


def describe_size(size: int) -> str:
    """Write bytes as people read them, with the exact number."""
    return f"{format_bytes(size)} ({size:,} bytes)"
