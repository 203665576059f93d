"""What-if answers as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from snapana.analyses.whatif import Run, WhatIf
from snapana.report.terminal import plain_console, text_table, write_heading
from snapana.units import format_bytes, format_count


def whatif_document(found: Sequence[WhatIf], changes: str = "") -> dict[str, Any]:
    """Give the JSON document of ``snapana whatif``: the fullest device, and the others, if any, in ``others``.

    Args:
        found: answers, one for each device.
        changes: what besides the settings is different in all runs but that of what was recorded.

    """
    answers = sorted(found, key=lambda one: (-one.peak_reserved, one.device))
    document = {**_object(answers[0]), "changes": changes or None}
    if len(answers) > 1:
        document["others"] = [_object(one) for one in answers[1:]]
    return document


def _object(found: WhatIf) -> dict[str, Any]:
    again = found.reproduction
    return {
        "device": found.device,
        "recorded": {
            "conf": found.conf,
            "peak_reserved_bytes": found.peak_reserved,
            "peak_allocated_bytes": found.peak_allocated,
            "failures": found.failures,
            "simulated": _run(found.runs[0]),
        },
        "limit_bytes": found.limit,
        "replay": {
            "events": again.allocations,
            "mismatches": again.mismatches,
            "address_mismatches": again.addresses,
            "peak_reserved_error_bytes": again.peak_reserved_error,
        },
        "bounds": {"peak_allocated_bytes": found.peak_allocated, "packed_bytes": found.packed},
        "runs": [_run(run) for run in found.runs[1:]],
        "notes": list(found.notes),
    }


def _run(run: Run) -> dict[str, Any]:
    names = ("alloc_index", "event", "requested_bytes")
    again = None if run.again_at is None else dict(zip(names, run.again_at, strict=True))
    failed = {"alloc_index": run.failed_at, "event": run.failed_event, "requested_bytes": run.failed_bytes}
    return {
        "conf": run.conf,
        "peak_reserved_bytes": run.peak_reserved,
        "peak_reserved_low_bytes": run.low,
        "peak_reserved_high_bytes": run.high,
        "peak_allocated_bytes": run.peak_allocated,
        "segments": run.segments,
        "segments_freed": run.freed,
        "retries": run.retries,
        "recorded_failures_again": run.failed_again,
        "smallest_capacity_bytes": run.smallest_capacity,
        "oom": failed if run.failed_at is not None else again,
    }


def print_whatif(found: Sequence[WhatIf], changes: str = "") -> None:
    """Print the answers on stdout; ``changes`` as above."""
    out = plain_console()
    for one in found:
        if len(found) > 1:
            write_heading(out, f"Device {one.device}")
        for line in _lines(one):
            out.print(Text(line))
        out.print(text_table(_columns(one), [_row(one, run, changes) for run in one.runs]))
        for note in one.notes:
            out.print(Text(note, style="dim"))


def _lines(found: WhatIf) -> list[str]:
    again = found.reproduction
    exact = not again.mismatches and not again.peak_reserved_error
    lines = [
        f"Recorded: {format_bytes(found.peak_reserved)} reserved at most, {format_bytes(found.peak_allocated)} "
        f"allocated, under {found.conf or 'default settings'}.",
        f"The model does {format_count(again.allocations)} allocations again "
        + (
            "exactly."
            if exact
            else f"with {format_count(again.mismatches)} mismatches; its peak is off by "
            f"{format_bytes(abs(again.peak_reserved_error))}."
        ),
    ]
    lines.append(
        "No limit is assumed." if found.limit is None else f"At most {format_bytes(found.limit)} may be reserved."
    )
    if found.packed is not None:
        lines.append(f"Packed into one piece, with all lives known beforehand: {format_bytes(found.packed)}.")
    if found.failures:
        lines.append("The recording ends in a failure: an answer is about the recorded requests, not what came after.")
    return lines


def _columns(found: WhatIf) -> list[tuple[str, bool]]:
    columns = [("reserved", True), ("change", True), ("range", True), ("in use", True), ("segments", True)]
    columns += [("freed", True), ("retries", True)]
    if any(run.smallest_capacity is not None for run in found.runs):
        columns.append(("smallest capacity", True))
    return [*columns, ("out of memory", False), ("settings", False)]


def _row(found: WhatIf, run: Run, changes: str) -> list[str]:
    base = found.runs[0].peak_reserved
    recorded = run is found.runs[0]
    cells = [
        format_bytes(run.peak_reserved),
        f"{run.peak_reserved / base - 1:+.1%}" if base and not recorded and run.failed_at is None else "",
        "" if run.low == run.high else f"{format_bytes(run.low)} to {format_bytes(run.high)}",
        f"{run.peak_allocated / run.peak_reserved:.0%}" if run.peak_reserved else "",
        format_count(run.segments),
        format_count(run.freed),
        format_count(run.retries),
    ]
    if run.smallest_capacity is not None:
        cells.append(format_bytes(run.smallest_capacity))
    failed = "the recorded request" if run.failed_again else "no"
    if run.failed_at is not None:
        failed = f"at allocation {format_count(run.failed_at)}, {format_bytes(run.failed_bytes or 0)}"
    name = run.conf or "default settings"
    if recorded:
        name += " (recorded)"
    elif changes:
        name += f", {changes}"
    return [*cells, failed, name]
