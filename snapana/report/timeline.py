"""An exported memory timeline, in every form: categories over time, since it holds nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup
from rich.text import Text

from snapana._version import __version__
from snapana.report.contract import SCHEMA
from snapana.report.terminal import plain_console
from snapana.trace.model import TIMELINE_CATEGORIES, Timeline
from snapana.units import format_bytes, format_count

_POINTS = 300


def timeline_document(timeline: Timeline) -> dict[str, Any]:
    """Give the JSON document: the contract's fields that a timeline can fill, null for the others."""
    total = timeline.total
    peak = int(total.argmax()) if len(total) else -1
    sums = _sums(timeline, peak)
    return {
        "snapana": {"version": __version__, "schema": SCHEMA},
        "input": {
            "name": timeline.info.name,
            "kind": "timeline",
            "sha256": timeline.info.sha256,
            "size_bytes": timeline.info.size_bytes,
            "events": len(total),
            "generation": "torch.profiler export_memory_timeline",
        },
        "settings": None,
        "devices": [
            {
                "device": 0,
                "window": {
                    "events": len(total),
                    "start_us": int(timeline.time_us[0]) if len(total) else None,
                    "end_us": int(timeline.time_us[-1]) if len(total) else None,
                },
                "peak": {
                    "event": peak,
                    "time_us": int(timeline.time_us[peak]) if len(total) else None,
                    "allocated_bytes": int(total[peak]) if len(total) else None,
                },
                "end": {"allocated_bytes": int(total[-1]) if len(total) else None},
                "categories": {
                    **{f"{name}_bytes": size for name, size in sums.items()},
                    "total_bytes": sum(sums.values()),
                },
            }
        ],
        "findings": [],
    }


def _sums(timeline: Timeline, row: int) -> dict[str, int]:
    if row < 0:
        return dict.fromkeys(TIMELINE_CATEGORIES, 0)
    return dict(zip(TIMELINE_CATEGORIES, timeline.sizes[row].tolist(), strict=True))


def timeline_lines(timeline: Timeline) -> list[tuple[str, str]]:
    """Give bytes and category at the peak, the largest first, and their sum."""
    total = timeline.total
    if not len(total):
        return []
    peak = int(total.argmax())
    parts = sorted(_sums(timeline, peak).items(), key=lambda part: -part[1])
    return [(format_bytes(size), name) for name, size in parts if size] + [(format_bytes(int(total[peak])), "in all")]


def print_timeline(timeline: Timeline) -> None:
    """Print the peak by category."""
    console = plain_console()
    console.print(Text(f"{timeline.info.name}: exported memory timeline, {format_count(len(timeline.total))} times"))
    for size, name in timeline_lines(timeline):
        console.print(Text(f"{size:>12}  {name}"))


def timeline_markdown(timeline: Timeline) -> str:
    """Write the peak by category."""
    rows = "\n".join(f"| {size} | {name} |" for size, name in timeline_lines(timeline))
    return f"**Peak by category, from an exported memory timeline**\n\n| ---: | --- |\n{rows}\n"


def render_timeline(timeline: Timeline) -> str:
    """Write the page."""
    from snapana.report.charts import fullest, stacked_areas
    from snapana.report.templates import environment

    total = timeline.total
    at = fullest(total, _POINTS)
    used = np.flatnonzero(timeline.sizes.any(axis=0)).tolist()
    styles = [f"c{number}" for number in range(len(TIMELINE_CATEGORIES) - 1)] + ["cx"]
    picture = (
        stacked_areas(
            at,
            timeline.sizes[at].T[used],
            [TIMELINE_CATEGORIES[code] for code in used],
            [styles[code] for code in used],
        )
        if len(at) and used
        else ""
    )
    return (
        environment()
        .get_template("timeline.html.j2")
        .render(
            version=__version__,
            info=timeline.info,
            times=len(total),
            picture=Markup(picture),
            legend=[{"style": styles[code], "name": TIMELINE_CATEGORIES[code]} for code in reversed(used)],
            lines=timeline_lines(timeline),
        )
    )
