"""What a better recording would tell: for each question that this one leaves open, the call that was missing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from snapana.analyses.overview import DeviceOverview, Overview
from snapana.recording.snippets import snippets
from snapana.snapshot.model import ACTION_CODE, Snapshot

# Rings are asked for in such steps.
_ROUND = 50_000
# Steps that a longer ring should hold.
_STEPS = 20
_MIB = 1024**2


@dataclass(frozen=True)
class Hint:
    """One open question.

    Attributes:
        code: dotted and stable, such as ``hint.ring``.
        message: what could not be told, and why, with this file's own figures.
        snippet: code to paste, at most 12 lines.

    """

    code: str
    message: str
    snippet: str


def hints(results: Overview) -> list[Hint]:
    """List what could not be told of a snapshot, the most important first; of traces nothing is listed here."""
    snapshot = results.snapshot
    if snapshot.info.kind != "snapshot" or not results.devices:
        return []
    device = max(results.devices, key=lambda one: (one.coverage.events, one.peak.allocated))
    if not device.coverage.events:
        code = snippets()["snapshot"].code
        return [Hint("hint.history", "Only the final state was recorded: no peak, no course, no leaks.", code)]
    found = [*_ring(snapshot, device), *_late(device), *_stacks(snapshot, device), *_native(snapshot)]
    return [*found, *_steps(device), *_failure(snapshot, device), *_card(results, device)]


def _ring(snapshot: Snapshot, device: DeviceOverview) -> list[Hint]:
    """Say how many steps the ring held, and what would hold more."""
    window = device.coverage
    if window.complete or not window.unmatched_frees:
        return []
    events = window.events
    per_step = _events_per_step(device)
    if per_step is None:
        needed = _rounded(10 * events)
        times = needed / events
        text = f"The ring held the last {events:,} events; max_entries={needed:_} would hold {times:,.0f} times as many"
    else:
        needed = _rounded(_STEPS * per_step)
        text = (
            f"{per_step:,.0f} events a step: the ring of {events:,} held {events / per_step:.1f} steps; "
            f"max_entries={needed:_} would hold {needed / per_step:,.0f}"
        )
    size = snapshot.info.size_bytes
    if size is not None and snapshot.info.name.endswith((".pickle", ".pkl")):
        text += f", in a file of about {max(1, round(size / events * needed / _MIB)):,} MiB"
    return [Hint("hint.ring", f"{text}.", snippets(entries=needed)["snapshot"].code)]


def _events_per_step(device: DeviceOverview) -> float | None:
    """Give the median number of events of the steps that are there whole."""
    table = device.steps.table
    if len(table) < 2:
        return None
    # The first is cut by the beginning of the ring.
    length = (table["end_event"] - table["start_event"] + 1).to_numpy(dtype=np.float64)[1:]
    return float(np.median(length))


def _rounded(entries: float) -> int:
    return max(_ROUND, math.ceil(entries / _ROUND) * _ROUND)


def _late(device: DeviceOverview) -> list[Hint]:
    window = device.coverage
    if window.complete or window.unmatched_frees or not window.preexisting_bytes:
        return []
    share = window.preexisting_bytes / max(device.peak.allocated, 1)
    return [
        Hint(
            "hint.late",
            f"The recording began when {window.preexisting_bytes / _MIB:,.2f} MiB were allocated already "
            f"({share:.0%} of the peak): which lines made them is not known.",
            snippets()["snapshot"].code,
        )
    ]


def _stacks(snapshot: Snapshot, device: DeviceOverview) -> list[Hint]:
    events = snapshot.replay[device.device].events
    made = events[(events["action"].cat.codes == ACTION_CODE["alloc"]).to_numpy()]
    if not len(made) or float((made["stack"] >= 0).mean()) > 0.05:
        return []
    return [
        Hint(
            "hint.stacks",
            f"None of the {len(made):,} allocations has a stack: context was None or 'state'.",
            snippets()["snapshot"].code,
        )
    ]


def _native(snapshot: Snapshot) -> list[Hint]:
    kinds = snapshot.stacks.frames["kind"]
    native = int((kinds == "cpp").sum())
    if native <= len(kinds) / 2:
        return []
    return [
        Hint(
            "hint.native",
            f"{native:,} of {len(kinds):,} different frames are C++: stacks='all' makes files large and slow to write, "
            "and only Python lines are needed here.",
            snippets()["snapshot"].code,
        )
    ]


def _steps(device: DeviceOverview) -> list[Hint]:
    if device.steps.confidence == 1.0 or device.coverage.events < 100:
        return []
    told = "No steps are known" if not len(device.steps) else f"Steps were guessed from {device.steps.source}"
    return [Hint("hint.steps", f"{told}: leaks are told from caches by steps.", snippets()["steps"].code)]


def _failure(snapshot: Snapshot, device: DeviceOverview) -> list[Hint]:
    """Say that a file was written after the exception had unwound: frees follow the last failure, and nothing else."""
    failed = device.fatal_oom
    if failed is None or not failed.fatal:
        return []
    events = snapshot.replay[device.device].events
    later = events["action"].cat.codes.to_numpy()[failed.event + 1 :]
    frees = int((later == ACTION_CODE["free_requested"]).sum())
    if not frees:
        return []
    lost = failed.allocated - device.end.allocated
    return [
        Hint(
            "hint.unwound",
            f"The file was written after the exception: {frees:,} blocks ({lost / _MIB:,.2f} MiB) were freed between "
            "the failure and the end. An observer writes at the failure.",
            snippets()["oom"].code,
        )
    ]


def _card(results: Overview, device: DeviceOverview) -> list[Hint]:
    failed = device.fatal_oom
    if failed is None or failed.card is not None or results.facts.card_of(device.device) is not None:
        return []
    return [
        Hint(
            "hint.card",
            "How large the card is, and what other processes held, is not in the file: give PyTorch's message with "
            "--message, or record with snapana.record, which notes both.",
            snippets()["record"].code,
        )
    ]
