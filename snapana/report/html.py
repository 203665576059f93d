"""The report: one HTML page that needs nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from markupsafe import Markup

from snapana._version import __version__
from snapana.analyses.card import CardUse
from snapana.analyses.churn import Churn
from snapana.analyses.failure import Facts
from snapana.analyses.fragmentation import Fragmentation
from snapana.analyses.groups import stacked
from snapana.analyses.hints import hints
from snapana.analyses.overview import DeviceOverview, Overview, Profile, Space
from snapana.analyses.peak import Peak
from snapana.analyses.pins import pin_age
from snapana.analyses.rules import CATEGORIES
from snapana.analyses.sites import site_codes
from snapana.analyses.whatif import briefly, limit_of
from snapana.findings import Finding, verdict
from snapana.frames import rows
from snapana.redact import summary_of
from snapana.report.charts import (
    Mark,
    fragmentation_curve,
    fullest,
    memory_curve,
    segment_map,
    stacked_areas,
    step_chart,
)
from snapana.report.contract import settings_object
from snapana.report.map import MAP_ROWS, map_key, map_rows
from snapana.report.payload import payload, script
from snapana.report.select import Selection, limited, top_sites, with_others
from snapana.report.templates import environment
from snapana.report.text import KIND_WORDS, course_lines, products
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes

_STACK_LINES = 60
_MAX_STEPS = 200
# Failures drawn and explained one by one; a loop that catches them can have thousands.
_MAX_FAILURES = 10


def render_report(results: Overview, found: list[Finding], selection: Selection, folded: str = "") -> str:
    """Write the page.

    Args:
        results: what was analysed.
        found: findings, ranked.
        selection: size of the tables.
        folded: what was left out to keep the page small, in a sentence.

    """
    snapshot = results.snapshot
    page = environment().get_template("report.html.j2")
    devices = [
        _device(snapshot, device, found, selection, results.facts)
        for device in sorted(results.devices, key=lambda device: device.device < 0)
    ]
    return page.render(
        script=script() if any(device["payload"] for device in devices) else None,
        version=__version__,
        info=snapshot.info,
        snapshot=snapshot,
        events=results.events,
        redacted=redacted_line(results.redacted),
        hints=hints(results),
        folded=folded,
        joins=results.joins,
        settings=settings_object(snapshot),
        devices=devices,
        findings=found,
        several=len(results.devices) > 1,
    )


def redacted_line(counts: dict[str, int] | None) -> str:
    """Say how much was replaced; empty where nothing was to be."""
    if counts is None:
        return ""
    return f"Redacted: {summary_of(counts)}; figures and names of functions are as recorded."


def _device(
    snapshot: Snapshot, device: DeviceOverview, found: list[Finding], selection: Selection, facts: Facts
) -> dict[str, Any]:
    return {
        "device": device,
        "verdict": verdict(device, found),
        "findings": [finding for finding in found if finding.device == device.device],
        "curve": _curve(snapshot, device),
        "peak": _sites(snapshot, device.peak, selection),
        "peak_when": WHEN.get(device.at, f"after event {device.at}"),
        "areas": _areas(snapshot, device),
        "categories": _categories(device),
        "course_lines": course_lines(device),
        "retained": [
            {**row._asdict(), "kind": KIND_WORDS[row.kind]} for row in rows(limited(device.leaks.retained, selection))
        ],
        "waiting": _waiting(snapshot, device, selection),
        "leaks": [_leak(snapshot, device, number, row) for number, row in enumerate(rows(device.leaks.table))],
        "failures": [
            {"oom": oom, "live": _sites(snapshot, oom.live, selection), "stack": _stack(snapshot, oom.stack)}
            for oom in device.oom[-_MAX_FAILURES:]
        ],
        "failures_left_out": max(0, max(device.oom_events, len(device.oom)) - _MAX_FAILURES),
        "steps": _step_rows(device),
        "steps_left_out": max(0, len(device.steps) - _MAX_STEPS),
        "space": None if device.space is None else _space(snapshot, device, device.space, selection),
        "payload": payload(snapshot, device),
        "other_settings": _other_settings(snapshot, device, facts),
        "profile": None if device.profile is None else _profile(device.profile, selection),
    }


def _other_settings(snapshot: Snapshot, device: DeviceOverview, facts: Facts) -> dict[str, Any] | None:
    """Ask the model of the allocator; None where it cannot tell."""
    failed = device.fatal_oom
    if snapshot.info.kind != "snapshot":
        return None
    limit = facts.limit_of(device.device)
    if limit is None and failed is not None:
        limit = limit_of(snapshot, failed)
    found = briefly(snapshot, device.device, limit)
    if found is None:
        return None
    again, runs = found
    recorded = runs[0]
    best = min(runs, key=lambda run: (run.failed_at is not None, run.failed_again, run.peak_reserved))
    cures = (best.failed_at is not None, best.failed_again) < (recorded.failed_at is not None, recorded.failed_again)
    return {
        "again": again,
        "limit": limit,
        "failed": bool(recorded.failed_again),
        "best": None
        if best is recorded or (not cures and best.peak_reserved > 0.98 * recorded.peak_reserved)
        else best,
        "rows": [
            {"run": run, "change": run.peak_reserved / max(recorded.peak_reserved, 1) - 1, "recorded": run is recorded}
            for run in runs
        ],
    }


def _space(snapshot: Snapshot, device: DeviceOverview, space: Space, selection: Selection) -> dict[str, Any]:
    """Prepare what depends on segments."""
    view = space.view
    layout = snapshot.replay[device.device].layout(view.event)
    return {
        "card": _card(space.card),
        "view": view,
        "view_when": WHEN.get(view.at, f"after event {view.at}"),
        "pools": [_pool(snapshot, view, row) for row in rows(view.pools)],
        "pins": [_pin(snapshot, device, view, row) for row in rows(limited(view.pins, selection))],
        "pins_rest": _rest(view.pins, selection),
        "pairs": list(rows(limited(view.pairs.head(10), selection))),
        "worst": list(rows(view.worst.head(10))),
        "course": _course(device, space),
        "map": Markup(segment_map(map_rows(snapshot, device.device, view, layout))),
        "map_key": map_key(snapshot, device.device, layout),
        "map_rows": min(len(layout.segments), MAP_ROWS),
        "map_segments": len(layout.segments),
        "churn": _churn(space.churn, selection),
    }


def _profile(profile: Profile, selection: Selection) -> dict[str, Any]:
    """Prepare what only a trace tells."""
    names = {"forward_operator": "forward operator of the backward pass"}
    tables = []
    for what, found in profile.askers.items():
        shown, others = with_others(found.table, selection)
        if shown:
            total = int(found.table["at_peak"].sum())
            tables.append({"name": names.get(what, what), "rows": shown, "others": others, "total": total})
    return {
        "profile": profile,
        "tables": tables,
        "calls": [] if profile.cost is None else list(rows(profile.cost.calls)),
        "cost_steps": []
        if profile.cost is None
        else [row._asdict() for row in rows(profile.cost.steps.rename(columns={"index": "number"}).head(_MAX_STEPS))],
        "failures": list(rows(profile.failures.head(_MAX_FAILURES))),
    }


WHEN = {
    "oom": "when the request failed",
    "peak": "where most was allocated",
    "peak_reserved": "where most was reserved",
    "optimizer": "at the end of the last optimizer step",
    "end": "at the end",
}
# How a part of the card is painted.
_STYLE = {
    "pending": "pending",
    "holes": "kept",
    "other_streams": "elsewhere",
    "releasable": "free",
    "pool_held": "held",
    "outside": "outside",
    "other_processes": "others",
    "driver_free": "driver",
    "not_pytorch": "outside unsure",
    "unknown": "unsure",
}


def _card(card: CardUse) -> dict[str, Any]:
    """Prepare the bar; a part of unknown size gets a sixth of the rest to be seen."""
    known = sum(part.bytes or 0 for part in card.parts)
    parts = []
    for part in card.parts:
        style = _STYLE.get(part.key, "")
        if part.key == "live":
            style = f"c{CATEGORIES.index(part.name)}"
        parts.append(
            {
                "name": part.name,
                "bytes": part.bytes,
                "hint": part.hint,
                "style": style,
                "grow": part.bytes if part.bytes is not None else max(known // 6, 1),
            }
        )
    return {"parts": parts, "capacity": card.capacity, "reserved": card.reserved}


def _waiting(snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> dict[str, Any] | None:
    waits = device.waiting
    if not waits.bytes:
        return None
    shown, others = top_sites(waits.sites, selection)
    return {"waits": waits, "rows": list(rows(shown)), "others": others}


def _course(device: DeviceOverview, space: Space) -> Markup | None:
    course = space.course
    if not device.coverage.events or not course["reserved"].any():
        return None
    columns = [course[name].to_numpy() for name in ("event", "utilization", "largest_hole", "unreleasable")]
    return Markup(fragmentation_curve(*columns))


def _pin(snapshot: Snapshot, device: DeviceOverview, cache: Fragmentation, row: Any) -> dict[str, Any]:
    age = pin_age(snapshot, device.device, device.steps, cache, int(row.born))
    return {**row._asdict(), "age": age, "frames": _stack(snapshot, row.stack)}


def _churn(found: Churn, selection: Selection) -> dict[str, Any]:
    return {
        "found": found,
        "emptied": list(rows(found.emptied)),
        "triggers": list(rows(limited(found.triggers, selection))),
    }


def _step_rows(device: DeviceOverview) -> list[dict[str, Any]]:
    table = device.steps.table.rename(columns={"index": "number", "allocated_bytes": "step_bytes"})
    if device.space is None:
        traffic = pd.DataFrame({"allocs": [None] * len(table), "frees": [None] * len(table)})
    else:
        traffic = device.space.churn.steps[["allocs", "frees"]]
    joined = pd.concat([table.reset_index(drop=True), traffic.reset_index(drop=True)], axis=1)
    return [row._asdict() for row in rows(joined.head(_MAX_STEPS))]


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
    # What is reserved of the CPU's memory no one tells.
    names = ("allocated", "active") if device.peak_reserved is None else ("allocated", "active", "reserved")
    curves = {name: np.maximum(replay.curves[name].to_numpy(), 0) for name in names}
    ends = device.steps.table["end_event"].tolist() if len(device.steps) else []
    return Markup(memory_curve(curves, marks, ends if len(ends) <= _MAX_STEPS else (), note))


# Instants at which bands are drawn; of each stretch the fullest.
_AREA_POINTS = 180
_BANDS = 8


def _areas(snapshot: Snapshot, device: DeviceOverview) -> list[dict[str, Any]]:
    """Draw what was allocated as bands, by category and by the largest sites."""
    replay = snapshot.replay[device.device]
    allocated = replay.curves["allocated"].to_numpy()
    if not device.coverage.events or not allocated.any():
        return []
    events = _fullest(allocated)
    lives = replay.allocations
    ends = device.steps.table["end_event"].tolist() if 0 < len(device.steps) <= _MAX_STEPS else []
    codes = site_codes(snapshot, lives)
    top = device.peak.sites["code"].head(_BANDS).to_numpy(dtype=np.int64)
    place = np.full(int(codes.max(initial=0)) + 1, len(top), dtype=np.int64)
    place[top] = np.arange(len(top))
    drawn = []
    sites = [*device.peak.sites["site"].head(_BANDS), "other sites"]
    for name, own, names, styles in (
        ("category", device.codes, list(CATEGORIES), [f"c{number}" for number in range(len(CATEGORIES))]),
        ("largest sites", place[codes], sites, [*(f"c{number}" for number in range(len(top))), "cx"]),
    ):
        bands = stacked(lives, own, len(names), events)
        used = np.flatnonzero(bands.any(axis=1)).tolist()
        legend = [{"style": styles[number], "name": names[number]} for number in used]
        picture = stacked_areas(
            events, bands[used], [key["name"] for key in legend], [key["style"] for key in legend], ends
        )
        drawn.append({"name": name, "picture": Markup(picture), "legend": legend})
    return drawn


def _fullest(allocated: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Choose events to draw: those of the fullest instants, the first and the last."""
    return np.union1d(fullest(allocated, _AREA_POINTS), [0, len(allocated) - 1]).astype(np.int64) - 1


def _categories(device: DeviceOverview) -> list[dict[str, Any]]:
    total = max(device.categories.total, 1)
    return [
        {
            "style": f"c{number}",
            "name": name,
            "bytes": size,
            "requested": device.categories.requested[name],
            "share": size / total,
        }
        for number, (name, size) in enumerate(device.categories.bytes.items())
    ]


def _sites(snapshot: Snapshot, live: Peak, selection: Selection) -> dict[str, Any]:
    shown, others = top_sites(live.sites, selection)
    total = max(live.allocated, 1)
    return {
        "rows": [
            {
                "site": row.site + products(row, selection),
                "file": row.file,
                "bytes": row.bytes,
                "requested": row.requested,
                "blocks": row.blocks,
                "category": CATEGORIES[row.category] if row.category >= 0 else "",
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


def _pool(snapshot: Snapshot, cache: Fragmentation, row: Any) -> dict[str, Any]:
    same = (cache.holes[["pool", "stream", "size_class"]] == [row.pool, row.stream, row.size_class]).all(axis=1)
    sizes = list(rows(cache.holes[same]))
    return {
        **row._asdict(),
        "id": snapshot.pools[row.pool],
        "sizes": sizes,
        "most": max((hole.bytes for hole in sizes), default=1),
        "external": None if pd.isna(row.external) else row.external,
    }


def _rest(table: pd.DataFrame, selection: Selection) -> int:
    return int(table["pinned"].sum() - limited(table, selection)["pinned"].sum())


def _leak(snapshot: Snapshot, device: DeviceOverview, number: int, row: Any) -> dict[str, Any]:
    return {
        **row._asdict(),
        "chart": Markup(
            step_chart(
                device.leaks.live[number],
                device.leaks.births[number],
                f"Live bytes at step ends, growing site {number + 1}",
            )
        ),
        "frames": _stack(snapshot, row.stack),
    }
