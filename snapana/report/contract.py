"""The JSON contract, schema 1: bytes are integers in fields that end in ``_bytes``; unknown is null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from snapana._version import __version__
from snapana.analyses.card import CardUse
from snapana.analyses.categories import Categories
from snapana.analyses.churn import Churn
from snapana.analyses.dims import as_product
from snapana.analyses.failure import OutOfMemory
from snapana.analyses.fragmentation import Fragmentation
from snapana.analyses.groups import group_at
from snapana.analyses.hints import hints
from snapana.analyses.leaks import Leaks
from snapana.analyses.oom_message import Explanation
from snapana.analyses.overview import DeviceOverview, Overview, Profile
from snapana.analyses.peak import Peak
from snapana.analyses.pins import pin_age
from snapana.analyses.rules import CATEGORIES
from snapana.analyses.steps import Steps
from snapana.findings import Finding
from snapana.frames import rows
from snapana.message import OomMessage
from snapana.report.select import Selection, limited, top_sites, with_others
from snapana.snapshot.model import Snapshot
from snapana.snapshot.sidecar import Sidecar

SCHEMA = 1


def document(results: Overview, found: list[Finding], selection: Selection) -> dict[str, Any]:
    """Give the whole document of ``snapana summary --json``."""
    snapshot = results.snapshot
    return {
        "snapana": {"version": __version__, "schema": SCHEMA},
        "input": input_object(results),
        "settings": settings_object(snapshot),
        "devices": [device_object(snapshot, device, selection) for device in results.devices],
        "findings": [asdict(finding) for finding in found],
        "hints": [asdict(hint) for hint in hints(results)],
        **({} if snapshot.sidecar is None else {"sidecar": _sidecar(snapshot.sidecar)}),
        **({"join": _joins(results)} if results.joins else {}),
        **({} if results.redacted is None else {"redacted": results.redacted}),
    }


def _sidecar(sidecar: Sidecar) -> dict[str, Any]:
    """Give what was noted beside the file."""
    return {
        "torch": sidecar.torch or None,
        "rank": sidecar.rank,
        "world_size": sidecar.world_size,
        "reason": sidecar.reason or None,
        "steps": sidecar.steps,
        "max_entries": sidecar.max_entries,
        "allocated_before_bytes": sidecar.allocated_before,
        "devices": [
            {"device": one.device, "name": one.name, "total_bytes": one.total, "limit_bytes": one.limit}
            for one in sidecar.devices
        ],
    }


def _joins(results: Overview) -> dict[str, Any]:
    """Say how a trace fits the snapshot: all devices together, and each."""
    return {
        "matched_events": sum(found.matched for found in results.joins),
        "unmatched_events": sum(found.unmatched for found in results.joins),
        "clock_offset_us": results.joins[0].clock_offset_us,
        "sizes_differ": sum(found.sizes_differ for found in results.joins),
        "devices": [
            {"device": found.device, "matched_events": found.matched, "unmatched_events": found.unmatched}
            for found in results.joins
        ],
    }


def part(results: Overview, name: str, selection: Selection, *, by: str = "site") -> dict[str, Any]:
    """Give the document of a command that prints one part: ``peak``, ``fragmentation``, ``leaks``, ``oom``."""
    devices = []
    for device in results.devices:
        whole = device_object(results.snapshot, device, selection)
        found = {"device": device.device, name: whole[name]}
        if name == "peak" and by != "site":
            table = group_at(results.snapshot, device, by)
            found["peak"] = {**whole["peak"], **groups_object(by, table, selection)}
            found["categories"] = whole["categories"]
        if name == "leaks":
            found["growth"] = whole["growth"]
        devices.append(found)
    return {"devices": devices}


def input_object(results: Overview) -> dict[str, Any]:
    """Say what was read."""
    snapshot = results.snapshot
    mended = {} if results.trace is None else {"repairs": results.trace.repairs, "rank": results.trace.rank}
    return {
        "name": snapshot.info.name,
        "kind": snapshot.info.kind,
        "sha256": snapshot.info.sha256,
        "size_bytes": snapshot.info.size_bytes,
        "events": results.events,
        "generation": snapshot.generation,
        **mended,
    }


def settings_object(snapshot: Snapshot) -> dict[str, Any] | None:
    """Give the recorded allocator settings; None where the file has none."""
    if not snapshot.has_settings:
        return None
    settings = snapshot.settings
    return {
        "conf": settings.conf,
        "expandable_segments": settings.expandable_segments,
        "max_split_size_bytes": settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "roundup_power2_divisions": {
            str(2**slot): divisions for slot, divisions in enumerate(settings.roundup_power2_divisions)
        },
    }


def device_object(snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> dict[str, Any]:
    """Give all results of one device."""
    window = device.coverage
    profile = {} if device.profile is None else _profile(device.profile, selection)
    return {
        "device": device.device,
        **profile,
        "window": {
            "events": window.events,
            "start_us": window.start_us,
            "end_us": window.end_us,
            "complete": window.complete,
            "preexisting_bytes": window.preexisting_bytes,
            "unmatched_frees": window.unmatched_frees,
            "replay_mismatches": window.replay_mismatches,
        },
        "peak": {"at": device.at, **_peak(snapshot, device.peak, selection)},
        "peak_reserved": {
            "event": device.peak_reserved_event,
            "time_us": device.peak_reserved_us,
            "reserved_bytes": device.peak_reserved,
        },
        "end": {f"{name}_bytes": value for name, value in asdict(device.end).items()},
        "fragmentation": None
        if device.space is None
        else {
            **_fragmentation(snapshot, device, device.space.fragmentation, selection),
            "course": _course(device.space.course),
        },
        "card": None if device.space is None else _card(device.space.card),
        "waiting": _waiting(snapshot, device, selection),
        "steps": _steps(device.steps),
        "leaks": _leaks(snapshot, device.leaks, selection),
        "oom": [
            *(_oom(snapshot, oom, selection) for oom in device.oom),
            *(_seen_failure(snapshot, row) for row in (rows(device.profile.failures) if device.profile else ())),
        ],
        "oom_events": device.oom_events,
        "churn": None if device.space is None else _churn(device.space.churn, selection),
        "categories": categories_object(device.categories),
        "growth": _growth(device),
    }


def _profile(profile: Profile, selection: Selection) -> dict[str, Any]:
    """Give what only a trace tells."""
    found = profile.cost
    return {
        "device_type": profile.device_type,
        "total_memory_bytes": profile.total_memory,
        "lost_bytes": profile.lost_bytes,
        **{f"{what}s": _asked(found.table, selection) for what, found in profile.askers.items()},
        "memory_calls": None
        if found is None
        else {
            "calls": [{"name": row.name, "count": int(row.count), "us": float(row.us)} for row in rows(found.calls)],
            "share_of_step": found.share,
            "empty_cache_calls": found.emptied,
            "empty_cache_at": found.emptied_at or None,
            "steps": [
                {
                    "index": int(row.number),
                    "us": float(row.us),
                    "allocs": int(row.allocs),
                    "frees": int(row.frees),
                    "call_us": float(row.call_us),
                    "share": float(row.share),
                    "reserved_up_bytes": int(row.reserved_up),
                    "reserved_down_bytes": int(row.reserved_down),
                }
                for row in rows(found.steps.rename(columns={"index": "number"}))
            ],
        },
    }


def _asked(table: pd.DataFrame, selection: Selection) -> list[dict[str, Any]]:
    """Give who asked for memory; the last row, without a name, sums those that are not shown."""
    shown, others = with_others(table, selection)
    return [
        {
            "name": None if row is others else row.name,
            "allocated_bytes": int(row.allocated),
            "freed_bytes": int(row.freed),
            "net_bytes": int(row.net),
            "at_peak_bytes": int(row.at_peak),
            "allocations": int(row.allocations),
        }
        for row in (*shown, *([] if others is None else [others]))
    ]


def _seen_failure(snapshot: Snapshot, row: Any) -> dict[str, Any]:
    """Give a failed allocation of a trace: what the trace does not tell is null."""
    return {
        "event": int(row.event),
        "time_us": int(row.time_us),
        "requested_bytes": int(row.requested),
        "active_bytes": None,
        "limit_bytes": None,
        "verdict": "unknown",
        "reasons": ["A profiler trace does not tell how memory was laid out; record a snapshot as well."],
        "allocated_bytes": int(row.allocated),
        "reserved_bytes": int(row.reserved),
        "largest_hole_bytes": None,
        "device_free_bytes": None,
        "site": snapshot.stacks.site(int(row.stack)).label,
        "stack": snapshot.stacks.text(int(row.stack)),
        "top_sites": None,
    }


def _site(snapshot: Snapshot, row: Any, selection: Selection) -> dict[str, Any]:
    return {
        "site": row.site,
        "file": row.file or None,
        "line": int(row.line) or None,
        "function": row.function or None,
        "bytes": int(row.bytes),
        "blocks": int(row.blocks),
        "largest_block_bytes": int(row.largest),
        "largest_block": as_product(int(row.largest), selection.dims) if selection.dims else None,
        "category": CATEGORIES[int(row.category)] if int(row.category) >= 0 else None,
        "stack": snapshot.stacks.text(int(row.stack)),
    }


def _peak(snapshot: Snapshot, peak: Peak, selection: Selection) -> dict[str, Any]:
    shown, others = top_sites(peak.sites, selection)
    named = peak.sites["kind"] != "none"
    return {
        "event": peak.event,
        "time_us": peak.time_us,
        "allocated_bytes": peak.allocated,
        "active_bytes": peak.active,
        "requested_bytes": peak.requested,
        "reserved_bytes": peak.reserved,
        "attributed_bytes": int(peak.sites["bytes"][named].sum()),
        "sites": [_site(snapshot, row, selection) for row in rows(shown)],
        "others_bytes": others,
    }


def _fragmentation(
    snapshot: Snapshot, device: DeviceOverview, cache: Fragmentation, selection: Selection
) -> dict[str, Any]:
    return {
        "at": cache.at,
        "event": cache.event,
        "reserved_bytes": cache.reserved,
        "allocated_bytes": cache.allocated,
        "active_bytes": cache.active,
        "cached_bytes": cache.cached,
        "releasable_bytes": cache.releasable,
        "unreleasable_bytes": cache.unreleasable,
        "pool_held_bytes": cache.pool_held,
        "internal_waste_bytes": cache.internal_waste,
        "utilization": cache.utilization,
        "pools": [_pool(snapshot, cache, row) for row in rows(cache.pools)],
        "pins": [_pin(snapshot, device, cache, row) for row in rows(cache.pins)],
        "pin_pairs": [
            {
                "sites": [row.first, row.second],
                "pinned_bytes": int(row.pinned),
                "segments": int(row.segments),
            }
            for row in rows(limited(cache.pairs, selection))
        ],
    }


def _pool(snapshot: Snapshot, cache: Fragmentation, row: Any) -> dict[str, Any]:
    same = cache.holes[["pool", "stream", "size_class"]] == [row.pool, row.stream, row.size_class]
    return {
        "pool": list(snapshot.pools[row.pool]),
        "stream": int(row.stream),
        "size_class": row.size_class,
        "segments": int(row.segments),
        "reserved_bytes": int(row.reserved),
        "free_bytes": int(row.free),
        "unreleasable_bytes": int(row.unreleasable),
        "holes": int(row.holes),
        "largest_hole_bytes": int(row.largest_hole),
        "external": None if pd.isna(row.external) else float(row.external),
        "hole_sizes": [
            {"at_least_bytes": int(hole.at_least), "holes": int(hole.holes), "bytes": int(hole.bytes)}
            for hole in rows(cache.holes[same.all(axis=1)])
        ],
    }


def _pin(snapshot: Snapshot, device: DeviceOverview, cache: Fragmentation, row: Any) -> dict[str, Any]:
    age = pin_age(snapshot, device.device, device.steps, cache, int(row.born))
    return {
        "site": row.site,
        "block_bytes": int(row.block_bytes),
        "blocks": int(row.blocks),
        "pinned_bytes": int(row.pinned),
        "segments": int(row.segments),
        "age_events": age.events,
        "age_us": age.us,
        "age_steps": age.steps,
        "stack": snapshot.stacks.text(int(row.stack)),
    }


def _course(course: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "event": int(row.event),
            "utilization": None if pd.isna(row.utilization) else float(row.utilization),
            "free_bytes": int(row.free),
            "largest_hole_bytes": int(row.largest_hole),
            "unreleasable_bytes": int(row.unreleasable),
        }
        for row in rows(course)
    ]


def _card(card: CardUse) -> dict[str, Any]:
    return {
        "at": card.at,
        "event": card.event,
        "capacity_bytes": card.capacity,
        "reserved_bytes": card.reserved,
        "parts": [
            {"key": part.key, "name": part.name, "bytes": part.bytes, "hint": part.hint or None} for part in card.parts
        ],
    }


def _waiting(snapshot: Snapshot, device: DeviceOverview, selection: Selection) -> dict[str, Any]:
    waits = device.waiting
    shown, others = top_sites(waits.sites, selection)
    return {
        "event": waits.event,
        "pending_bytes": waits.bytes,
        "peak_allocated_bytes": waits.peak_allocated,
        "peak_active_bytes": waits.peak_active,
        "sites": [_site(snapshot, row, selection) for row in rows(shown)],
        "others_bytes": others,
    }


def _churn(found: Churn, selection: Selection) -> dict[str, Any]:
    return {
        "segment_allocs": found.segment_allocs,
        "segment_frees": found.segment_frees,
        "allocated_bytes": found.allocated_bytes,
        "freed_bytes": found.freed_bytes,
        "per_step": found.per_step,
        "empty_cache_calls": found.empty_cache_calls,
        "releases": found.releases,
        "released_bytes": found.released_bytes,
        "retries": found.retries,
        "steps": [
            {
                "index": int(row.number),
                "segment_allocs": int(row.allocs),
                "segment_frees": int(row.frees),
                "allocated_bytes": int(row.allocated_bytes),
                "freed_bytes": int(row.freed_bytes),
            }
            for row in rows(found.steps.rename(columns={"index": "number"}))
        ],
        "triggers": [
            {"site": row.site, "segment_allocs": int(row.allocs), "bytes": int(row.bytes)}
            for row in rows(limited(found.triggers, selection))
        ],
        "empty_cache": [
            {
                "site": row.site,
                "named": bool(row.named),
                "calls": int(row.calls),
                "segments": int(row.segments),
                "bytes": int(row.bytes),
                "per_step": None if pd.isna(row.per_step) else float(row.per_step),
            }
            for row in rows(found.emptied)
        ],
    }


def _steps(steps: Steps) -> list[dict[str, Any]]:
    return [
        {
            "index": int(row.index_),
            "name": row.name,
            "start_event": int(row.start_event),
            "end_event": int(row.end_event),
            "peak_allocated_bytes": int(row.peak_allocated),
            "end_allocated_bytes": int(row.end_allocated),
            "peak_reserved_bytes": int(row.peak_reserved),
            "allocations": int(row.allocations),
            "allocated_bytes": int(row.allocated_bytes),
            "segment_allocs": int(row.segments),
        }
        for row in rows(steps.table.rename(columns={"index": "index_"}))
    ]


def _leaks(snapshot: Snapshot, leaks: Leaks, selection: Selection) -> list[dict[str, Any]] | None:
    """None where growth could not be judged: no steps, or too few."""
    if not leaks.judged:
        return None
    return [
        {
            "site": row.site,
            "file": row.file or None,
            "line": int(row.line) or None,
            "function": row.function or None,
            "bytes_per_step": _whole(row.bytes_per_step),
            "block_bytes_per_step": _whole(row.block_bytes_per_step),
            "blocks_per_step": _whole(row.blocks_per_step),
            "steps": int(row.steps),
            "total_bytes": int(row.total),
            "confidence": float(row.confidence),
            "period_steps": int(row.period),
            "first_event": int(row.first_event),
            "last_event": int(row.last_event),
            "siblings_freed": int(row.freed),
            "usually_freed_at": row.freed_at or None,
            "survivors_by_step": leaks.births[number].tolist(),
            "stack": snapshot.stacks.text(int(row.stack)),
        }
        for number, row in enumerate(rows(leaks.table))
    ]


def categories_object(found: Categories) -> dict[str, Any]:
    """Give what is allocated by category: occupied bytes, and what was asked for beside them."""

    def keys(sums: dict[str, int]) -> dict[str, int]:
        return {**{f"{name}_bytes": size for name, size in sums.items()}, "total_bytes": sum(sums.values())}

    return {**keys(found.bytes), "requested": keys(found.requested)}


def _growth(device: DeviceOverview) -> dict[str, Any]:
    """Say how memory goes on from step to step, and what was kept without being a leak."""
    course, found = device.step_course, device.leaks
    return {
        "judged": found.judged,
        "boundaries": found.source or None,
        "steps_source": device.steps.source or None,
        "steps_confidence": device.steps.confidence if len(device.steps) else None,
        "warm_up_steps": found.warm_up if found.judged else None,
        "trends": None
        if course is None
        else [
            {
                "name": trend.name,
                "kind": trend.kind,
                "bytes_per_step": _whole(trend.per_step),
                "low_bytes": trend.low,
                "high_bytes": trend.high,
            }
            for trend in course.trends
        ],
        "peak_ratio": None if course is None else course.ratio,
        "steps_until_full": None if course is None else course.projection,
        "retained": [
            {
                "site": row.site,
                "kind": row.kind,
                "requested_bytes": int(row.requested),
                "blocks": int(row.blocks),
            }
            for row in rows(found.retained)
        ],
    }


def groups_object(by: str, table: pd.DataFrame, selection: Selection) -> dict[str, Any]:
    """Give what is allocated by another grouping; its rows and the others sum to what is allocated."""
    shown, others = top_sites(table, selection)
    return {
        "by": by,
        "groups": [
            {
                "name": row.name,
                "bytes": int(row.bytes),
                "requested_bytes": int(row.requested),
                "blocks": int(row.blocks),
            }
            for row in rows(shown)
        ],
        "other_groups_bytes": others,
    }


def _whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _oom(snapshot: Snapshot, oom: OutOfMemory, selection: Selection) -> dict[str, Any]:
    shown, others = top_sites(oom.live.sites, selection)
    return {
        "event": oom.event,
        "time_us": oom.time_us,
        "requested_bytes": oom.requested,
        "segment_bytes": oom.segment,
        "fatal": oom.fatal,
        "site": oom.site.label,
        "stack": snapshot.stacks.text(oom.stack),
        "pool": list(snapshot.pools[oom.pool]) if oom.pool_recorded else None,
        "stream": oom.stream,
        "allocated_bytes": oom.allocated,
        "active_bytes": oom.active,
        "reserved_bytes": oom.reserved,
        "free_for_request_bytes": oom.own_free,
        "largest_hole_bytes": oom.largest_hole,
        "unreleasable_bytes": None if oom.cache is None else oom.cache.unreleasable,
        "pool_held_bytes": oom.pool_held,
        "other_streams_bytes": oom.other_streams,
        "released_before_bytes": oom.released_before,
        "limit_bytes": oom.limit,
        "limit_low_bytes": oom.limit_low,
        "limit_high_bytes": oom.limit_high,
        "device_free_bytes": oom.device_free,
        "card_bytes": oom.card,
        "outside_allocator_bytes": oom.outside,
        "other_processes_bytes": oom.others,
        "verdict": oom.verdict,
        "reasons": list(oom.reasons),
        "changes": [{"what": change.what, "bytes": change.bytes, "enough": change.enough} for change in oom.changes],
        "top_sites": [_site(snapshot, row, selection) for row in rows(shown)],
        "others_bytes": others,
        "message": None if oom.message is None else message_object(oom.message),
    }


def message_object(message: OomMessage) -> dict[str, Any]:
    """Give the figures of PyTorch's message, as printed."""
    return {
        "backend": message.backend,
        "device": message.device,
        "requested_bytes": message.requested,
        "capacity_bytes": message.capacity,
        "free_bytes": message.free,
        "process_bytes": message.process,
        "processes": [{"pid": number, "bytes": size} for number, size in message.others],
        "allowed_bytes": message.allowed,
        "allocated_bytes": message.allocated,
        "private_pools_free_bytes": message.private_free,
        "reserved_bytes": message.reserved,
    }


def explanation_document(found: Sequence[Explanation]) -> dict[str, Any]:
    """Give the document of ``oom --message`` without a snapshot: the objects of ``oom``, with what a message tells."""
    devices = sorted({one.message.device or 0 for one in found})
    return {
        "devices": [
            {
                "device": device,
                "oom": [_explanation(one) for one in found if (one.message.device or 0) == device],
            }
            for device in devices
        ]
    }


def _explanation(found: Explanation) -> dict[str, Any]:
    message = found.message
    return {
        "event": None,
        "time_us": None,
        "requested_bytes": message.requested,
        "segment_bytes": message.requested,
        "allocated_bytes": message.allocated,
        "active_bytes": None,
        "reserved_bytes": message.reserved,
        "largest_hole_bytes": None,
        "limit_bytes": message.allowed,
        "device_free_bytes": message.free,
        "card_bytes": message.capacity,
        "outside_allocator_bytes": message.outside,
        "other_processes_bytes": message.others_total,
        "verdict": found.verdict,
        "reasons": list(found.reasons),
        "top_sites": None,
        "message": message_object(message),
    }
