"""The JSON contract, schema 1: bytes are integers in fields that end in ``_bytes``; unknown is null."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd

from snapana._version import __version__
from snapana.analyses.fragmentation import Fragmentation
from snapana.analyses.leaks import Leaks
from snapana.analyses.oom import OutOfMemory
from snapana.analyses.overview import DeviceOverview, Overview
from snapana.analyses.peak import Peak
from snapana.analyses.steps import Steps
from snapana.findings import Finding
from snapana.frames import rows
from snapana.report.select import Selection, top_sites
from snapana.snapshot.model import Snapshot

SCHEMA = 1


def document(results: Overview, found: list[Finding], selection: Selection) -> dict[str, Any]:
    """Give the whole document of ``snapana summary --json``."""
    snapshot = results.snapshot
    return {
        "snapana": {"version": __version__, "schema": SCHEMA},
        "input": input_object(snapshot),
        "settings": settings_object(snapshot),
        "devices": [device_object(snapshot, device, selection) for device in results.devices],
        "findings": [asdict(finding) for finding in found],
    }


def part(results: Overview, name: str, selection: Selection) -> dict[str, Any]:
    """Give the document of a command that prints one part: ``peak``, ``fragmentation``, ``leaks``, ``oom``."""
    return {
        "devices": [
            {"device": device.device, name: device_object(results.snapshot, device, selection)[name]}
            for device in results.devices
        ]
    }


def input_object(snapshot: Snapshot) -> dict[str, Any]:
    """Say what was read."""
    return {
        "name": snapshot.info.name,
        "kind": snapshot.info.kind,
        "sha256": snapshot.info.sha256,
        "size_bytes": snapshot.info.size_bytes,
        "events": len(snapshot.events),
        "generation": snapshot.generation,
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
    return {
        "device": device.device,
        "window": {
            "events": window.events,
            "start_us": window.start_us,
            "end_us": window.end_us,
            "complete": window.complete,
            "preexisting_bytes": window.preexisting_bytes,
            "unmatched_frees": window.unmatched_frees,
            "replay_mismatches": window.replay_mismatches,
        },
        "peak": _peak(snapshot, device.peak, selection),
        "peak_reserved": {
            "event": device.peak_reserved_event,
            "time_us": device.peak_reserved_us,
            "reserved_bytes": device.peak_reserved,
        },
        "end": {f"{name}_bytes": value for name, value in asdict(device.end).items()},
        "fragmentation": _fragmentation(snapshot, device.fragmentation, selection),
        "steps": _steps(device.steps),
        "leaks": _leaks(snapshot, device.leaks, selection),
        "oom": [_oom(snapshot, oom, selection) for oom in device.oom],
        "churn": {
            "segment_allocs": device.churn.segment_allocs,
            "segment_frees": device.churn.segment_frees,
            "per_step": device.churn.per_step,
            "empty_cache_calls": device.churn.empty_cache_calls,
        },
        "categories": None,
    }


def _site(snapshot: Snapshot, row: Any) -> dict[str, Any]:
    return {
        "site": row.site,
        "file": row.file or None,
        "line": int(row.line) or None,
        "function": row.function or None,
        "bytes": int(row.bytes),
        "blocks": int(row.blocks),
        "category": None,
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
        "sites": [_site(snapshot, row) for row in rows(shown)],
        "others_bytes": others,
    }


def _fragmentation(snapshot: Snapshot, cache: Fragmentation, selection: Selection) -> dict[str, Any]:
    return {
        "at": cache.at,
        "event": cache.event,
        "reserved_bytes": cache.reserved,
        "allocated_bytes": cache.allocated,
        "cached_bytes": cache.cached,
        "releasable_bytes": cache.releasable,
        "unreleasable_bytes": cache.unreleasable,
        "pool_held_bytes": cache.pool_held,
        "internal_waste_bytes": cache.internal_waste,
        "utilization": cache.utilization,
        "pools": [
            {
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
            }
            for row in rows(cache.pools)
        ],
        "pins": [
            {
                "site": row.site,
                "block_bytes": int(row.block_bytes),
                "blocks": int(row.blocks),
                "pinned_bytes": int(row.pinned),
                "segments": int(row.segments),
            }
            for row in rows(cache.pins)
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
            "stack": snapshot.stacks.text(int(row.stack)),
        }
        for row in rows(leaks.table)
    ]


def _whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _oom(snapshot: Snapshot, oom: OutOfMemory, selection: Selection) -> dict[str, Any]:
    shown, _ = top_sites(oom.live.sites, selection)
    return {
        "event": oom.event,
        "time_us": oom.time_us,
        "requested_bytes": oom.requested,
        "site": oom.site.label,
        "stack": snapshot.stacks.text(oom.stack),
        "allocated_bytes": oom.allocated,
        "active_bytes": oom.active,
        "reserved_bytes": oom.reserved,
        "free_for_request_bytes": oom.own_free,
        "largest_hole_bytes": oom.largest_hole,
        "limit_bytes": None,
        "device_free_bytes": oom.device_free,
        "verdict": oom.verdict,
        "reasons": list(oom.reasons),
        "top_sites": [_site(snapshot, row) for row in rows(shown)],
    }
