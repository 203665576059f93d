"""Plans as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from snapana.analyses.plan import Plan, Point
from snapana.report.terminal import plain_console, text_table, write_heading
from snapana.units import format_bytes, format_count

_SITES = 12


def plan_document(found: Sequence[Plan]) -> dict[str, Any]:
    """Give the JSON document of ``snapana plan``: the fullest device, and the others, if any, in ``others``."""
    answers = sorted(found, key=lambda one: (-one.recorded[0].peak_allocated, one.device))
    document = _object(answers[0])
    if len(answers) > 1:
        document["others"] = [_object(one) for one in answers[1:]]
    return document


def _object(found: Plan) -> dict[str, Any]:
    return {
        "device": found.device,
        "conf": found.conf,
        "capacity_bytes": found.capacity,
        "margin": found.margin,
        "recorded": [
            {
                "input": one.name,
                "micro_batch": one.batch,
                "peak_allocated_bytes": one.peak_allocated,
                "needed_bytes": one.needed,
                "predicted_bytes": one.predicted,
            }
            for one in found.recorded
        ],
        "points": [_point(point) for point in found.points],
        "checkpointing": [_point(point) for point in found.checkpointing] or None,
        "largest_micro_batch": found.largest,
        "largest_micro_batch_checkpointing": found.largest_checkpointing,
        "recipe": None
        if found.recipe is None
        else {
            **_point(found.recipe),
            "accumulation_steps": found.recipe.accumulation_steps,
            "effective_batch": found.recipe.micro_batch * found.recipe.accumulation_steps,
        },
        "sites": [
            {
                "site": site,
                "category": category,
                "constant_bytes": round(constant),
                "per_sample_bytes": round(grows),
                "requested_bytes": round(requested),
            }
            for site, category, constant, grows, requested in zip(
                *(found.sites[name].tolist() for name in found.sites.columns), strict=True
            )
        ],
        "assumptions": list(found.assumptions),
    }


def _point(point: Point) -> dict[str, Any]:
    return {
        "micro_batch": point.micro_batch,
        "peak_allocated_bytes": point.peak_allocated,
        "low_bytes": point.low,
        "high_bytes": point.high,
        "peak_reserved_bytes": point.peak_reserved,
        "peak_reserved_low_bytes": point.reserved_low,
        "peak_reserved_high_bytes": point.reserved_high,
    }


def print_plan(found: Sequence[Plan]) -> None:
    """Print the plans on stdout."""
    out = plain_console()
    for one in found:
        if len(found) > 1:
            write_heading(out, f"Device {one.device}")
        for line in _lines(one):
            out.print(Text(line))
        out.print()
        out.print(text_table(_columns(one), [_row(one, number) for number in range(len(one.points))]))
        out.print()
        out.print(Text("What grows, at the recorded peak, and what does not:"))
        columns = [("a sample", True), ("constant", True), ("category", False), ("site", False)]
        out.print(text_table(columns, _growth(one)))
        for line in one.assumptions:
            out.print(Text(line, style="dim"))


def _lines(found: Plan) -> list[str]:
    lines = []
    for one in found.recorded:
        failed = one.needed > one.peak_allocated
        lines.append(
            f"Recorded: {one.name}, micro-batch {format_count(one.batch)}, {format_bytes(one.peak_allocated)} "
            f"allocated at most{f', {format_bytes(one.needed)} with what failed' if failed else ''}; "
            f"the model says {format_bytes(one.predicted)} ({one.predicted / one.needed - 1:+.2%})."
        )
    if found.capacity is not None:
        usable = f"{format_bytes(found.capacity)} less {found.margin:.0%}, under {found.conf or 'default settings'}"
        if found.largest:
            lines.append(f"Largest micro-batch in {usable}: {format_count(found.largest)}.")
        else:
            lines.append(f"Not even one sample fits into {usable}.")
    if found.checkpointing:
        at = next((n for n, one in enumerate(found.points) if one.micro_batch == found.recorded[0].batch), 0)
        saved = found.points[at].peak_allocated - found.checkpointing[at].peak_allocated
        line = f"Activation checkpointing saves {format_bytes(saved)} at micro-batch {found.points[at].micro_batch:,}"
        largest = found.largest_checkpointing
        lines.append(line + ("." if largest is None else f", and lets {format_count(largest)} fit."))
    return [*lines, *_recipe(found)]


def _recipe(found: Plan) -> list[str]:
    recipe = found.recipe
    if recipe is None:
        return ["No micro-batch fits: shard the model or its optimizer, or use activation checkpointing."]
    effective = format_count(recipe.micro_batch * recipe.accumulation_steps)
    needs = f"{format_bytes(recipe.peak_allocated)} allocated, {format_bytes(recipe.peak_reserved)} reserved"
    count = format_count(recipe.accumulation_steps)
    if recipe.accumulation_steps == 1:
        return [f"A batch of {effective} goes in one piece: {needs}."]
    return [
        f"For a batch of {effective}: {count} micro-batches of {format_count(recipe.micro_batch)} for each step of the "
        f"optimizer: {needs}.",
        f"In code: divide the loss by {count} before backward(), and call optimizer.step() and zero_grad() only after "
        f"every {count} calls of backward().",
    ]


def _columns(found: Plan) -> list[tuple[str, bool]]:
    columns = [("micro-batch", True), ("allocated", True), ("range", True), ("reserved", True), ("range", True)]
    columns += [("recorded", True)]
    columns += [("of capacity", True)] if found.capacity else []
    return columns + ([("with checkpointing", True)] if found.checkpointing else [])


def _row(found: Plan, number: int) -> list[str]:
    point = found.points[number]
    known = next((one.peak_allocated for one in found.recorded if one.batch == point.micro_batch), None)
    cells = [
        format_count(point.micro_batch),
        format_bytes(point.peak_allocated),
        _range(point.low, point.high),
        format_bytes(point.peak_reserved),
        _range(point.reserved_low, point.reserved_high),
        "" if known is None else format_bytes(known),
    ]
    if found.capacity:
        cells.append(f"{point.peak_reserved / found.capacity:.0%}")
    if found.checkpointing:
        cells.append(format_bytes(found.checkpointing[number].peak_allocated))
    return cells


def _range(low: int, high: int) -> str:
    least, most = format_bytes(low), format_bytes(high)
    return "" if least == most else f"{least} to {most}"


def _growth(found: Plan) -> list[list[str]]:
    columns = ("per_sample_bytes", "constant_bytes", "category", "site")
    rows = list(zip(*(found.sites[name].tolist() for name in columns), strict=True))
    shown = [[format_bytes(grows), format_bytes(stays), kind, site] for grows, stays, kind, site in rows[:_SITES]]
    if len(rows) > _SITES:
        rest = rows[_SITES:]
        sums = [format_bytes(sum(row[at] for row in rest)) for at in (0, 1)]
        shown.append([*sums, "", f"({len(rest)} others)"])
    sums = [format_bytes(sum(row[at] for row in rows)) for at in (0, 1)]
    return [*shown, [*sums, "", "all"]]
