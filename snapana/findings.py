"""Rules that turn results into ranked findings, each with its bytes, evidence and advice.

Advice looks at the recorded settings: what is already on is not advised again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from snapana.analyses.failure import OutOfMemory
from snapana.analyses.fragmentation import SEVERAL_SITES
from snapana.analyses.oom_changes import may_expand
from snapana.analyses.overview import DeviceOverview, Overview
from snapana.analyses.settings import check_settings
from snapana.frames import rows
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes, format_count

SEVERITIES = ("high", "medium", "low", "info")

_GIB = 1024**3
_MIB = 1024**2


@dataclass(frozen=True)
class Finding:
    """One thing worth knowing.

    Attributes:
        code: dotted and stable, such as ``leak.growth``.
        severity: ``high``, ``medium``, ``low`` or ``info``.
        device: ordinal.
        bytes: what it is about, in bytes; None where bytes do not measure it.
        message: what was seen, with figures.
        advice: what to do; may be empty.
        evidence: figures behind it.

    """

    code: str
    severity: str
    device: int
    bytes: int | None
    message: str
    advice: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


def judge(results: Overview) -> list[Finding]:
    """Judge all devices; the most severe first, then the largest."""
    found = _of_trace(results) + [
        finding
        for device in results.devices
        for finding in (
            *_window(results.snapshot, device),
            *_out_of_memory(device),
            *_leaks(device),
            *_caches(device),
            *_varying(device),
            *_categories(device),
            *_utilization(results.snapshot, device),
            *_pins(device),
            *_rounding(results.snapshot, device),
            *_pending(device),
            *_empty_cache(device),
            *_retries(results.snapshot, device),
            *_settings(results.snapshot, device),
            *_logits(device),
            *_largest(device),
        )
    ]
    return sorted(found, key=lambda finding: (SEVERITIES.index(finding.severity), -(finding.bytes or 0)))


# ---- what the file can tell


def _of_trace(results: Overview) -> list[Finding]:
    trace = results.trace
    if trace is None:
        return []
    found = []
    if not len(trace.memory):
        found.append(
            Finding(
                "trace.no_memory",
                "medium",
                -1,
                None,
                "The trace holds no memory events: nothing can be told of memory.",
                "Call torch.profiler.profile(..., profile_memory=True, with_stack=True, record_shapes=True).",
            )
        )
    elif not len(trace.python):
        found.append(
            Finding(
                "trace.no_stacks",
                "info",
                -1,
                None,
                "The trace holds no Python functions: memory is told by operator, not by line.",
                "Call torch.profiler.profile(..., with_stack=True).",
            )
        )
    if trace.repairs:
        what = ", ".join(f"{kind.replace('_', ' ')}: {format_count(count)}" for kind, count in trace.repairs.items())
        found.append(
            Finding(
                "trace.repaired",
                "low",
                -1,
                None,
                f"The file was no sound JSON and was mended: {what}.",
                "",
                {**trace.repairs},
            )
        )
    for device in results.devices:
        found += _cost(device)
    return found


def _cost(device: DeviceOverview) -> list[Finding]:
    """Say what memory management costs, where it is more than a little."""
    found = None if device.profile is None else device.profile.cost
    if found is None or found.share is None or found.share < 0.02:
        return []
    steady = found.steps
    each = format_bytes(float(steady["reserved_up"].median()))
    called = f" {found.emptied_at} calls empty_cache() {format_count(found.emptied)} times." if found.emptied else ""
    return [
        Finding(
            "churn.empty_cache" if found.emptied >= len(steady) else "churn.driver_calls",
            "medium",
            device.device,
            int(steady["reserved_up"].median()),
            f"A steady step makes {steady['allocs'].median():.0f} calls that get memory and "
            f"{steady['frees'].median():.0f} that give it back, {each} each way: {found.share:.0%} of the step."
            f"{called}",
            "Take empty_cache() out of the loop: each step asks the driver for the same memory again."
            if found.emptied
            else "The cache does not hold what a step needs: see fragmentation in a snapshot.",
            {
                "allocs_per_step": float(steady["allocs"].median()),
                "frees_per_step": float(steady["frees"].median()),
                "share": found.share,
            },
        )
    ]


def _window(snapshot: Snapshot, device: DeviceOverview) -> list[Finding]:
    window = device.coverage
    found = []
    if not window.events:
        return [
            Finding(
                "window.no_history",
                "medium",
                device.device,
                None,
                "The file holds the final state only, no events: no peak, no course, no leaks can be told.",
                "Call torch.cuda.memory._record_memory_history(max_entries=100000) before the model is built.",
            )
        ]
    if window.unmatched_frees and device.space is not None:
        found.append(
            Finding(
                "window.truncated",
                "low",
                device.device,
                window.preexisting_bytes,
                f"The window begins in the middle of the run: {format_count(window.unmatched_frees)} blocks freed in "
                f"it and {format_bytes(window.preexisting_bytes)} in all were allocated before it. The peak is that of "
                "the window.",
                f"Record with more entries (this file holds {format_count(window.events)}), or start earlier.",
                {"unmatched_frees": window.unmatched_frees, "events": window.events},
            )
        )
    elif window.preexisting_blocks:
        traced = device.space is None
        found.append(
            Finding(
                "window.late_start",
                "info" if traced else "low",
                device.device,
                window.preexisting_bytes,
                f"{'The profiler' if traced else 'Recording'} began late: {format_bytes(window.preexisting_bytes)} was "
                "there already, without a stack.",
                "" if traced else "Call torch.cuda.memory._record_memory_history() before the model is built.",
                {"preexisting_blocks": window.preexisting_blocks},
            )
        )
    if window.replay_mismatches:
        found.append(
            Finding(
                "window.mismatches",
                "medium",
                device.device,
                None,
                f"The events do not explain the final state in {format_count(window.replay_mismatches)} places; "
                "figures near the end may be off.",
                "Seen where other threads allocate while the dump is written, or where events were skipped.",
                dict(window.mismatches),
            )
        )
    return found


# ---- out of memory


def _out_of_memory(device: DeviceOverview) -> list[Finding]:
    """Report the last failure; that the program lived on makes it less severe."""
    last = device.fatal_oom
    if last is None:
        return []
    more = f" It is the last of {format_count(device.oom_events)} failures." if device.oom_events > 1 else ""
    survived = "" if last.fatal else " The program went on after it."
    return [
        Finding(
            f"oom.{last.verdict}",
            "high" if last.fatal else "medium",
            device.device,
            last.requested,
            _oom_message(last) + survived + more,
            advice(last),
            {
                "event": last.event,
                "requested_bytes": last.requested,
                "allocated_bytes": last.allocated,
                "reserved_bytes": last.reserved,
                "free_for_request_bytes": last.own_free,
                "largest_hole_bytes": last.largest_hole,
                "device_free_bytes": last.device_free,
            },
        )
    ]


VERDICT_WORDS = {
    "fragmentation": "fragmentation: enough was free for it, but in holes that are too small",
    "stranded_pool": "stranded memory: enough was free, but in pools or streams that it may not use",
    "limit": "a limit on PyTorch: the driver had enough left",
    "driver_refused": "the driver, which had enough left and refused",
    "other_processes": "other processes on the card",
    "outside_allocator": "what this process holds outside PyTorch",
    "capacity": "capacity: what PyTorch holds and what was asked for do not fit the card together",
    "unknown": "unknown: the file does not say enough of what else was on the card",
}


def _oom_message(oom: OutOfMemory) -> str:
    by = f" for {oom.site.label}" if oom.site.kind != "none" else ""
    return (
        f"Out of memory: {format_bytes(oom.requested)}{by} did not fit. Cause: {VERDICT_WORDS[oom.verdict]}. "
        f"{format_bytes(oom.allocated)} allocated, {format_bytes(oom.reserved - oom.allocated)} reserved but "
        f"unallocated, largest usable hole {format_bytes(oom.largest_hole)}."
    )


def advice(oom: OutOfMemory) -> str:
    """Write the changes that would make a failed request fit as one paragraph."""
    enough = [change.what for change in oom.changes if change.enough]
    if enough:
        return ". Or ".join([enough[0], *(what[0].lower() + what[1:] for what in enough[1:])]) + "."
    return "".join(f"{change.what}. " for change in oom.changes).strip()


def _defragment(snapshot: Snapshot) -> str:
    if snapshot.settings.max_split_size is not None and may_expand(snapshot):
        return (
            f"Drop max_split_size_mb: free blocks of {format_bytes(snapshot.settings.max_split_size)} and more serve "
            "no smaller request. Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True instead."
        )
    if may_expand(snapshot):
        return (
            "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: its holes can be filled by any size. Or free the "
            "blocks that keep segments (see the pins)."
        )
    if snapshot.settings.expandable_segments or bool(snapshot.segments["expandable"].any()):
        return "Expandable segments are on already: free the blocks that keep pages (see the pins)."
    return "Free the blocks that keep segments (see the pins), or allocate long-lived ones first."


# ---- growth, fragmentation, churn


def _leaks(device: DeviceOverview) -> list[Finding]:
    table = device.leaks.table
    graph = device.leaks_of_forward if len(device.leaks_of_forward) >= 3 else []
    found = [_retained_graph(device, table[table["code"].isin(graph)])] if graph else []
    unit = "step" if device.leaks.source == device.steps.source else f"{device.leaks.steps}th part of the window"
    for row in rows(table[~table["code"].isin(graph)]):
        growth = float(row.bytes_per_step)
        sure = "" if device.leaks.source == device.steps.source else f" Steps are {device.leaks.source}."
        usual = f" Its other blocks are usually freed at {row.freed_at}; these were not." if row.freed_at else ""
        found.append(
            Finding(
                "leak.growth",
                "high" if growth >= _MIB else "medium",
                device.device,
                int(row.total),
                f"{row.site} keeps {format_bytes(growth)} more with every {unit} ({_blocks(row.blocks_per_step)}, "
                f"{format_bytes(row.block_bytes_per_step)} with rounding), over {row.steps} steps.{usual}{sure}",
                "Something keeps a reference to what this line makes: a list, a hook, a cache without a bound. The "
                "line that holds it may be elsewhere.",
                {
                    "site": row.site,
                    "bytes_per_step": growth,
                    "blocks_per_step": float(row.blocks_per_step),
                    "confidence": float(row.confidence),
                    "steps_until_full": device.step_course.projection if device.step_course else None,
                },
            )
        )
    return found


def _retained_graph(device: DeviceOverview, table: pd.DataFrame) -> Finding:
    """Report lines that grow together as the one thing that they are."""
    growth = float(table["bytes_per_step"].sum())
    first = table.iloc[0]
    return Finding(
        "leak.growth",
        "high" if growth >= _MIB else "medium",
        device.device,
        int(table["total"].sum()),
        f"{len(table)} lines of the forward pass keep {format_bytes(growth)} more with every step together, most of it "
        f"{first['site']} ({format_bytes(float(first['bytes_per_step']))}): a graph is retained.",
        "The line that keeps it alive is elsewhere, and allocates next to nothing itself: look for a loss or output "
        "that is summed or stored with its graph, and use .item() or .detach().",
        {
            "sites": table["site"].tolist(),
            "bytes_per_step": growth,
            "blocks_per_step": float(table["blocks_per_step"].sum()),
            "confidence": float(table["confidence"].min()),
            "steps_until_full": device.step_course.projection if device.step_course else None,
        },
    )


def _blocks(count: float) -> str:
    return "1 block" if count == 1 else f"{count:.3g} blocks"


def _caches(device: DeviceOverview) -> list[Finding]:
    """Name what fills up or is replaced: it looks like a leak, and is none."""
    kept = device.leaks.retained
    bounded = kept[(kept["kind"] == "cache_bounded") & (kept["requested"] >= 16 * _MIB)]
    return [
        Finding(
            "leak.cache_bounded",
            "info",
            device.device,
            int(row.requested),
            f"{row.site} holds {format_bytes(int(row.requested))} in {format_count(int(row.blocks))} blocks of several "
            "steps, but no longer grows: a cache, no leak.",
            "",
            {"site": row.site, "blocks": int(row.blocks)},
        )
        for row in rows(bounded.head(3))
    ]


def _varying(device: DeviceOverview) -> list[Finding]:
    """Say what most suspected leaks are: steps of different size."""
    course = device.step_course
    if course is None or not course.varies or len(device.leaks.table):
        return []
    fatal = device.fatal_oom
    asked = fatal is not None and device.largest_so_far
    failed = " The step that failed asked for the largest blocks so far." if asked else ""
    return [
        Finding(
            "growth.varying_peaks",
            "info",
            device.device,
            course.trends[1].high - course.trends[1].low,
            f"Not a leak: step ends are flat at {format_bytes(course.trends[0].high)}, step peaks vary "
            f"{course.ratio:.1f}x.{failed}",
            "Bound the largest step: cut or bucket long sequences, or make the largest batch first, so that memory is "
            "reserved in one piece.",
            {"lowest_peak_bytes": course.trends[1].low, "highest_peak_bytes": course.trends[1].high},
        )
    ]


def _categories(device: DeviceOverview) -> list[Finding]:
    total = device.categories.total
    if not total:
        return []
    found = []
    activations = device.categories.bytes["activations"]
    if activations >= 0.5 * total and activations >= 256 * _MIB:
        found.append(
            Finding(
                "peak.activations_dominate",
                "low" if device.oom else "info",
                device.device,
                activations,
                f"Activations are {format_bytes(activations)} of the {format_bytes(total)} at the peak "
                f"({activations / total:.0%}).",
                f"Activation checkpointing recomputes most of them; half the micro-batch with twice the accumulation "
                f"steps saves about {format_bytes(activations / 2)}; a lower precision halves them too.",
                {"activations_bytes": activations},
            )
        )
    workspaces = device.categories.bytes["workspace"]
    if workspaces >= 256 * _MIB and workspaces >= 0.1 * total:
        found.append(
            Finding(
                "peak.fragment_workspace",
                "low",
                device.device,
                workspaces,
                f"Workspaces of cuBLAS and cuDNN hold {format_bytes(workspaces)} ({workspaces / total:.0%}): one for "
                "each handle and stream.",
                "Use fewer streams, or smaller ones: CUBLAS_WORKSPACE_CONFIG=:4096:2.",
                {"workspace_bytes": workspaces},
            )
        )
    found += [
        Finding(
            "peak.second_copy",
            "low",
            device.device,
            copy.bytes,
            f"{copy.site} holds {format_bytes(copy.bytes)} in blocks of the same sizes as the parameters, "
            f"{copy.scale:.2f}x: it looks like a second copy {copy.precision}.",
            "Is it meant to be there: an average of the weights, a reference model, weights loaded twice or cast?",
            {"site": copy.site, "scale": copy.scale},
        )
        for copy in device.copies
        if copy.bytes >= 64 * _MIB
    ]
    kept = device.kept_gradients
    if kept >= 64 * _MIB and kept >= 0.05 * total:
        found.append(
            Finding(
                "peak.gradients_kept",
                "low",
                device.device,
                kept,
                f"{format_bytes(kept)} of gradients of the step before were alive at the peak.",
                "Call optimizer.zero_grad(set_to_none=True) right after optimizer.step(), not before the backward "
                "pass.",
                {"gradients_bytes": kept},
            )
        )
    return found


def _utilization(snapshot: Snapshot, device: DeviceOverview) -> list[Finding]:
    if device.space is None:
        return []
    cache = device.space.fullest
    if cache.utilization is None or cache.utilization >= 0.8:
        return []
    gap = round(cache.reserved * (1 - cache.utilization))
    if gap < _GIB:
        return []
    return [
        Finding(
            "fragmentation.low_utilization",
            "high" if cache.utilization < 0.6 else "medium",
            device.device,
            gap,
            f"At its fullest PyTorch used {cache.utilization:.0%} of the {format_bytes(cache.reserved)} that it had "
            f"reserved; {format_bytes(cache.unreleasable)} of the rest could not be given back.",
            _defragment(snapshot),
            {
                "utilization": cache.utilization,
                "unreleasable_bytes": cache.unreleasable,
                "releasable_bytes": cache.releasable,
            },
        )
    ]


def _pins(device: DeviceOverview) -> list[Finding]:
    if device.space is None:
        return []
    cache = device.space.view
    if not len(cache.pins) or cache.unreleasable < min(_GIB, max(_GIB // 4, cache.reserved // 10)):
        return []
    alone = cache.pins[cache.pins["site"] != SEVERAL_SITES]
    first = (alone if len(alone) else cache.pins).iloc[0]
    when = "when the request failed" if cache.at == "oom" else f"at {cache.at.replace('_', ' ')}"
    share = int(first["block_bytes"]) / max(int(first["pinned"]), 1)
    return [
        Finding(
            "fragmentation.pins",
            "medium" if share < 0.1 else "low",
            device.device,
            cache.unreleasable,
            f"{format_bytes(cache.unreleasable)} of cache could not be released {when}, because live blocks keep their "
            f"segments. Kept by one site alone: {first['site']}, {format_bytes(int(first['block_bytes']))} in "
            f"{format_count(int(first['blocks']))} blocks keep {format_bytes(int(first['pinned']))} in "
            f"{format_count(int(first['segments']))} segments.",
            "Allocate what lives long before what comes and goes, or let it share segments.",
            {
                "site": str(first["site"]),
                "pinned_bytes": int(first["pinned"]),
                "block_bytes": int(first["block_bytes"]),
                "segments": int(first["segments"]),
            },
        )
    ]


def _rounding(snapshot: Snapshot, device: DeviceOverview) -> list[Finding]:
    if device.space is None:
        return []
    cache = device.space.fullest
    share = cache.internal_waste / cache.active if cache.active else 0.0
    if share < 0.1 or cache.internal_waste < 64 * _MIB:
        return []
    divided = any(division > 1 for division in snapshot.settings.roundup_power2_divisions)
    return [
        Finding(
            "fragmentation.rounding",
            "medium" if share >= 0.2 else "low",
            device.device,
            cache.internal_waste,
            f"{format_bytes(cache.internal_waste)} ({share:.0%}) of the active blocks was more than was asked for: "
            "rounding, and remainders that are not split off.",
            "Use more divisions in roundup_power2_divisions, or none: each request is rounded up to them."
            if divided
            else "Tensors of less than 512 bytes, and those a little above a multiple of 2 MiB, cost this: fewer and "
            "larger ones do not.",
            {"internal_waste_bytes": cache.internal_waste, "active_bytes": cache.active},
        )
    ]


def _pending(device: DeviceOverview) -> list[Finding]:
    waits = device.waiting
    if waits.bytes < max(64 * _MIB, waits.peak_allocated // 20) or not len(waits.sites):
        return []
    raised = waits.peak_active - waits.peak_allocated
    first = waits.sites.iloc[0]
    return [
        Finding(
            "streams.pending_free",
            "medium" if raised >= waits.peak_allocated // 10 else "low",
            device.device,
            waits.bytes,
            f"Up to {format_bytes(waits.bytes)} was freed but waited for another stream, most of it from "
            f"{first['site']} ({format_bytes(int(first['bytes']))}). Peak active is {format_bytes(waits.peak_active)}, "
            f"peak allocated {format_bytes(waits.peak_allocated)}.",
            "Tensors that record_stream() marks stay until that stream is through: let it wait less, or hold the "
            "tensors and let the main stream wait for it before they are freed.",
            {
                "event": waits.event,
                "peak_active_bytes": waits.peak_active,
                "peak_allocated_bytes": waits.peak_allocated,
                "site": str(first["site"]),
            },
        )
    ]


def _empty_cache(device: DeviceOverview) -> list[Finding]:
    """Accuse only calls that name ``empty_cache``, from one line, in most steps."""
    if device.space is None:
        return []
    churn = device.space.churn
    enough = max(3, 0.8 * len(device.steps))
    return [
        Finding(
            "churn.empty_cache",
            "medium",
            device.device,
            int(row.bytes),
            f"empty_cache() at {row.site} gave memory back {format_count(int(row.calls))} times"
            f"{_once_a_step(float(row.per_step))}, {row.segments / row.calls:.3g} segments and "
            f"{format_bytes(row.bytes / row.calls)} each time"
            + (f"; a step allocates {churn.per_step:.3g} segments anew." if churn.per_step else "."),
            "Take it out of the loop: the next step has to ask the driver again, and each time the GPU waits.",
            {
                "site": str(row.site),
                "calls": int(row.calls),
                "calls_per_step": None if math.isnan(row.per_step) else float(row.per_step),
                "segments_per_step": churn.per_step,
            },
        )
        for row in rows(churn.emptied)
        if row.named and row.calls >= enough
    ]


def _once_a_step(per_step: float) -> str:
    if math.isnan(per_step):
        return ""
    return ", once a step" if 0.8 <= per_step <= 1.2 else f", {per_step:.2g} times a step"


def _retries(snapshot: Snapshot, device: DeviceOverview) -> list[Finding]:
    """Report allocations that only fitted once the cache was released: each waits for the GPU and the driver."""
    found = None if device.space is None else device.space.churn
    if found is None or not found.retries or found.released_bytes is None:
        return []
    return [
        Finding(
            "churn.retries",
            "medium" if found.retries >= 10 else "low",
            device.device,
            found.released_bytes,
            f"{format_count(found.retries)} allocation{'s' if found.retries > 1 else ''} fitted only after PyTorch had "
            f"released its cache ({format_bytes(found.released_bytes)} in all): the card was full, and each such time "
            "waits for the GPU.",
            "Memory is short or in pieces long before it fails: see fragmentation. " + _defragment(snapshot),
            {"retries": found.retries, "released_bytes": found.released_bytes},
        )
    ]


def _settings(snapshot: Snapshot, device: DeviceOverview) -> list[Finding]:
    if not snapshot.has_settings:
        return []
    return [
        Finding(f"settings.{check.kind}", check.severity, device.device, None, check.message, check.advice)
        for check in check_settings(snapshot, device.device)
    ]


def _logits(device: DeviceOverview) -> list[Finding]:
    found = device.logits
    live = device.fatal_oom.live if device.fatal_oom is not None else device.peak
    if found is None or found.bytes < max(64 * _MIB, live.allocated // 20):
        return []
    names = ", ".join(found.sites["site"].head(3))
    alive = f"{found.blocks} blocks" if found.blocks > 1 else "one block"
    return [
        Finding(
            "peak.logits",
            "low" if found.blocks > 1 or found.bytes >= live.allocated // 10 else "info",
            device.device,
            found.bytes,
            f"The loss over the vocabulary holds {format_bytes(found.bytes)} "
            f"({found.bytes / max(live.allocated, 1):.0%}) at once: {alive} of up to {format_bytes(found.largest)}, "
            f"made by {names}.",
            "Compute the loss in pieces along the sequence, or fused with the last layer, and leave the logits in "
            "their own dtype: each upcast is another block of this size.",
            {"event": found.event, "blocks": found.blocks, "largest_bytes": found.largest},
        )
    ]


def _largest(device: DeviceOverview) -> list[Finding]:
    sites = device.peak.sites
    if not len(sites) or not device.peak.allocated:
        return []
    first = sites.iloc[0]
    share = int(first["bytes"]) / device.peak.allocated
    return [
        Finding(
            "peak.largest_site",
            "info",
            device.device,
            int(first["bytes"]),
            f"At the peak of {format_bytes(device.peak.allocated)}, {first['site']} held "
            f"{format_bytes(int(first['bytes']))} ({share:.0%}) in {format_count(int(first['blocks']))} blocks.",
            "",
            {"site": str(first["site"]), "blocks": int(first["blocks"])},
        )
    ]


# ---- the verdict


@dataclass(frozen=True)
class Verdict:
    """The answer in four sentences.

    Attributes:
        title: what happened, in one line.
        filled: what filled the card.
        cause: capacity, fragmentation or growth, with the figures that say so.
        action: what to do; empty where nothing needs doing.

    """

    title: str
    filled: str
    cause: str
    action: str


def verdict(device: DeviceOverview, found: list[Finding]) -> Verdict:
    """Say first what matters first for one device."""
    own = [finding for finding in found if finding.device == device.device]
    action = next((finding.advice for finding in own if finding.severity != "info" and finding.advice), "")
    return Verdict(_title(device), _filled(device), _cause(device), action)


def _title(device: DeviceOverview) -> str:
    fatal = device.fatal_oom
    if fatal is not None:
        survived = "" if fatal.fatal else ", and the program went on"
        return (
            f"Out of memory{survived}: {format_bytes(fatal.requested)} did not fit. "
            f"Cause: {fatal.verdict.replace('_', ' ')}."
        )
    if len(device.leaks.table):
        growth = float(device.leaks.table["bytes_per_step"].sum())
        return f"Memory grows by {format_bytes(growth)} with every step."
    return (
        f"Peak {format_bytes(device.peak.allocated)} allocated, {format_bytes(device.peak_reserved)} reserved; "
        "nothing ran out."
    )


def _filled(device: DeviceOverview) -> str:
    """Say what filled the card: by category where that says something, then by line."""
    fatal = device.fatal_oom
    live = fatal.live if fatal is not None else device.peak
    if not live.allocated:
        return "Nothing was allocated in the window."
    top = [
        f"{row.site} {format_bytes(int(row.bytes))} ({int(row.bytes) / live.allocated:.0%})"
        for row in rows(live.sites.head(3))
    ]
    when = "When it failed" if fatal is not None else "At the peak" if device.at == "peak" else "At that instant"
    kinds = device.failed_categories if fatal is not None else device.categories
    largest = sorted(((size, name) for name, size in kinds.bytes.items() if name != "other"), reverse=True)[:3]
    named = [f"{name} {format_bytes(size)} ({size / live.allocated:.0%})" for size, name in largest if size]
    what = f": {', '.join(named)}" if named and kinds.bytes["other"] < live.allocated / 2 else ""
    return f"{when}, {format_bytes(live.allocated)} was allocated{what}. Most of it by {'; '.join(top)}."


def _cause(device: DeviceOverview) -> str:
    fatal = device.fatal_oom
    if fatal is not None:
        return " ".join(fatal.reasons)
    if len(device.leaks.table):
        first = device.leaks.table.iloc[0]
        return (
            f"Growth: {len(device.leaks.table)} site(s) keep more with every step, first {first['site']} with "
            f"{format_bytes(float(first['bytes_per_step']))} a step."
        )
    growth = "no site grows from step to step" if device.leaks.judged else "growth could not be judged (no steps)"
    if device.space is None:
        return f"A profiler trace does not tell how memory is laid out; {growth}."
    cache = device.space.fullest
    if cache.utilization is not None and cache.utilization < 0.8 and cache.reserved * (1 - cache.utilization) >= _GIB:
        what = "Fragmentation" if cache.unreleasable >= cache.reserved * 0.05 else "Unused cache"
        return (
            f"{what}: only {cache.utilization:.0%} of what was reserved was ever in use at once; "
            f"{format_bytes(cache.unreleasable)} of the rest could not be given back."
        )
    used = f"{cache.utilization:.0%} of what was reserved was in use" if cache.utilization is not None else ""
    return f"Neither fragmentation nor growth: {used} at the fullest, and {growth}."
