"""The report: one HTML page that needs nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from snapana._version import __version__
from snapana.allocator.layout import ALLOCATED, FREE, PENDING, Layout
from snapana.analyses.overview import DeviceOverview, Overview
from snapana.analyses.peak import Peak
from snapana.findings import Finding, verdict
from snapana.frames import rows
from snapana.report.charts import MapRow, Mark, describe_size, memory_curve, segment_map, step_chart
from snapana.report.contract import settings_object
from snapana.report.select import Selection, top_sites
from snapana.report.templates import environment
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes

MAP_ROWS = 40
_STACK_LINES = 60
_MAX_STEPS = 200
# Failures drawn and explained one by one; a loop that catches them can have thousands.
_MAX_FAILURES = 10


@dataclass(frozen=True)
class Part:
    """A piece of a bar that closes: name, CSS class and bytes."""

    name: str
    style: str
    bytes: int


def render_report(results: Overview, found: list[Finding], selection: Selection) -> str:
    """Write the page.

    Args:
        results: what was analysed.
        found: findings, ranked.
        selection: size of the tables.

    """
    snapshot = results.snapshot
    page = environment().get_template("report.html.j2")
    return page.render(
        version=__version__,
        info=snapshot.info,
        snapshot=snapshot,
        settings=settings_object(snapshot),
        devices=[_device(snapshot, device, found, selection) for device in results.devices],
        findings=found,
        several=len(results.devices) > 1,
    )


def _device(snapshot: Snapshot, device: DeviceOverview, found: list[Finding], selection: Selection) -> dict[str, Any]:
    replay = snapshot.replay[device.device]
    fatal = device.fatal_oom
    instant = fatal.event if fatal is not None else device.fragmentation.event
    layout = replay.layout(instant)
    cache = device.fragmentation
    return {
        "device": device,
        "verdict": verdict(device, found),
        "findings": [finding for finding in found if finding.device == device.device],
        "curve": _curve(snapshot, device),
        "peak": _sites(snapshot, device.peak, selection),
        "closing": _closing(fatal.live if fatal is not None else None, layout, cache_of=device),
        "closing_when": "when the request failed" if fatal is not None else "where most was reserved",
        "pools": [_pool(snapshot, row) for row in rows(cache.pools)],
        "pins": _limited(cache.pins, selection),
        "pins_rest": _rest(cache.pins, selection),
        "worst": list(rows(cache.worst.head(10))),
        "map": Markup(segment_map(_map_rows(layout))),
        "map_rows": min(len(layout.segments), MAP_ROWS),
        "map_segments": len(layout.segments),
        "leaks": [_leak(snapshot, device, number, row) for number, row in enumerate(rows(device.leaks.table))],
        "failures": [
            {"oom": oom, "live": _sites(snapshot, oom.live, selection), "stack": _stack(snapshot, oom.stack)}
            for oom in device.oom[-_MAX_FAILURES:]
        ],
        "failures_left_out": max(0, len(device.oom) - _MAX_FAILURES),
        "steps": [row._asdict() for row in rows(_step_table(device).head(_MAX_STEPS))],
        "steps_left_out": max(0, len(device.steps) - _MAX_STEPS),
    }


def _curve(snapshot: Snapshot, device: DeviceOverview) -> Markup | None:
    """Draw the course of the window; None where there are no events."""
    replay = snapshot.replay[device.device]
    if not device.coverage.events:
        return None
    marks = [Mark(device.peak.event, f"peak {format_bytes(device.peak.allocated)}")]
    marks += [
        Mark(oom.event, f"out of memory: {format_bytes(oom.requested)} asked", bad=True)
        for oom in device.oom[-_MAX_FAILURES:]
    ]
    window = device.coverage
    note = ""
    if window.start_us is not None and window.end_us is not None:
        note = f" ({(window.end_us - window.start_us) / 1e6:,.2f} s in all)"
    curves = {name: replay.curves[name].to_numpy() for name in ("allocated", "active", "reserved")}
    ends = device.steps.table["end_event"].tolist() if len(device.steps) else []
    return Markup(memory_curve(curves, marks, ends if len(ends) <= _MAX_STEPS else (), note))


def _sites(snapshot: Snapshot, live: Peak, selection: Selection) -> dict[str, Any]:
    shown, others = top_sites(live.sites, selection)
    total = max(live.allocated, 1)
    return {
        "rows": [
            {
                "site": row.site,
                "file": row.file,
                "bytes": row.bytes,
                "requested": row.requested,
                "blocks": row.blocks,
                "share": row.bytes / total,
                "stack": _stack(snapshot, row.stack),
            }
            for row in rows(shown)
        ],
        "others": others,
        "others_count": len(live.sites) - len(shown),
        "others_share": others / total,
        "total": live.allocated,
    }


def _stack(snapshot: Snapshot, stack: int) -> list[str]:
    return snapshot.stacks.text(int(stack), limit=_STACK_LINES)


def _closing(failed: Peak | None, layout: Layout, *, cache_of: DeviceOverview) -> dict[str, Any]:
    """Split reserved memory into parts that sum to it."""
    size = layout.ranges["size"].to_numpy()
    state = layout.ranges["state"].to_numpy()
    reserved = int(layout.segments["size"].sum())
    parts = [
        Part("allocated", "allocated", int(size[state == ALLOCATED].sum())),
        Part("waiting for another stream", "pending", int(size[state == PENDING].sum())),
    ]
    free = int(size[state == FREE].sum())
    if failed is None:
        cache = cache_of.fragmentation
        parts += [
            Part("free, kept by live blocks (unreleasable)", "kept", cache.unreleasable),
            Part("free, held by private pools", "held", cache.pool_held),
            Part("free, releasable by empty_cache()", "free", cache.releasable),
        ]
    else:
        parts.append(Part("free, in holes", "kept", free))
    return {"parts": [part for part in parts if part.bytes], "reserved": reserved}


def _pool(snapshot: Snapshot, row: Any) -> dict[str, Any]:
    return {
        **row._asdict(),
        "id": snapshot.pools[row.pool],
        "external": None if pd.isna(row.external) else row.external,
    }


def _limited(table: pd.DataFrame, selection: Selection) -> list[Any]:
    return list(rows(table if selection.top is None else table.head(selection.top)))


def _rest(table: pd.DataFrame, selection: Selection) -> int:
    return 0 if selection.top is None else int(table["pinned"].iloc[selection.top :].sum())


def _leak(snapshot: Snapshot, device: DeviceOverview, number: int, row: Any) -> dict[str, Any]:
    return {
        **row._asdict(),
        "chart": Markup(step_chart(device.leaks.live[number], f"Live bytes at step ends, growing site {number + 1}")),
        "frames": _stack(snapshot, row.stack),
    }


def _step_table(device: DeviceOverview) -> pd.DataFrame:
    return device.steps.table.rename(columns={"index": "number"})


def _map_rows(layout: Layout) -> list[MapRow]:
    """Choose the segments to draw: those with most free bytes, then the largest."""
    ranges, segments = layout.ranges, layout.segments
    free = ranges[ranges["state"] == FREE].groupby("segment")["size"].sum()
    table = segments.assign(free=free.reindex(segments.index, fill_value=0))
    table = table.sort_values(["free", "size"], ascending=False, kind="stable").head(MAP_ROWS)
    by_segment = dict(list(ranges[ranges["segment"].isin(table.index)].groupby("segment")))
    drawn = []
    for index, row in zip(table.index, rows(table), strict=True):
        own = by_segment[index]
        offset = (own["address"].to_numpy() - segments["address"].to_numpy()[index]).astype("int64")
        pieces = list(zip(offset.tolist(), own["size"].tolist(), own["state"].tolist(), strict=True))
        blocks = sum(state != FREE for _, _, state in pieces)
        label = (
            f"segment {row.address:#x}: {describe_size(row.size)}, {describe_size(row.free)} free, {blocks} blocks, "
            f"stream {row.stream}"
        )
        drawn.append(
            MapRow(
                size=int(row.size),
                label=label,
                allocated=[(low, size) for low, size, state in pieces if state == ALLOCATED],
                pending=[(low, size) for low, size, state in pieces if state == PENDING],
            )
        )
    return drawn
