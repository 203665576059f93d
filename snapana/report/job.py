"""A job's ranks as text, Markdown, JSON and an HTML page."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from rich.text import Text

from snapana._version import __version__
from snapana.analyses.compare import verdict_lines
from snapana.analyses.job import Job, Outlier, Rank
from snapana.frames import rows
from snapana.report.compare import page_run
from snapana.report.contract import SCHEMA
from snapana.report.html import redacted_line
from snapana.report.markdown import escape, table
from snapana.report.select import Selection
from snapana.report.templates import environment
from snapana.report.terminal import plain_console, text_table
from snapana.units import format_bytes, format_count

_MOST_CURVES = 16
_COLUMNS = ("rank", "peak", "end", "reserved", "leak a step", "out of memory", "window", "file")


def job_document(job: Job) -> dict[str, Any]:
    """Give the JSON document of a folder."""
    return {
        "snapana": {"version": __version__, "schema": SCHEMA},
        "ranks": [_rank(one) for one in job.ranks],
        "typical": None if job.typical is None else job.typical.rank,
        "outliers": [_outlier(one) for one in job.outliers],
        "more_outliers": job.more_outliers,
        **({} if job.redacted is None else {"redacted": job.redacted}),
    }


def _rank(rank: Rank) -> dict[str, Any]:
    read = not rank.error
    return {
        "rank": rank.rank,
        "name": rank.name,
        "error": rank.error or None,
        "kind": rank.kind or None,
        "device": rank.device if read else None,
        "events": rank.events if read else None,
        "complete": rank.complete if read else None,
        "steps": rank.steps if read else None,
        "peak_allocated_bytes": rank.peak_allocated if read else None,
        "end_allocated_bytes": rank.end_allocated if read else None,
        "peak_reserved_bytes": rank.peak_reserved,
        "leak_bytes_per_step": None if rank.leak is None else round(rank.leak),
        "oom_events": rank.out_of_memory if read else None,
    }


def _outlier(outlier: Outlier) -> dict[str, Any]:
    own = outlier.compared.sites
    return {
        "rank": outlier.rank.rank,
        "name": outlier.rank.name,
        "reasons": list(outlier.reasons),
        "verdict": " ".join(verdict_lines(outlier.compared)),
        "batch_ratio": outlier.compared.batch,
        "leaks": [
            {"site": row.site, "bytes_per_step": round(row.bytes_per_step)}
            for row in rows(outlier.compared.other.device.leaks.table)
        ],
        "only_here": [{"site": row.site, "bytes": int(row.other_bytes)} for row in rows(own[own["status"] == "new"])],
    }


def _table(job: Job) -> list[list[str]]:
    found = []
    for one in job.ranks:
        head = "?" if one.rank is None else str(one.rank)
        if one.error:
            found.append(
                [
                    head,
                    "",
                    "",
                    "",
                    "",
                    "",
                    "",
                    one.error if one.error.startswith(one.name) else f"{one.name}: {one.error}",
                ]
            )
            continue
        odd = any(outlier.rank is one for outlier in job.outliers)
        window = "whole run" if one.complete else "part of the run"
        found.append(
            [
                head + (" *" if odd else ""),
                format_bytes(one.peak_allocated),
                format_bytes(one.end_allocated),
                format_bytes(one.peak_reserved),
                "not judged" if one.leak is None else format_bytes(one.leak),
                format_count(one.out_of_memory),
                f"{format_count(one.events)} events, {window}",
                one.name,
            ]
        )
    return found


def _lines(job: Job) -> list[str]:
    read = [one for one in job.ranks if not one.error]
    lines = [
        f"{job.name}: {len(read)} of {len(job.ranks)} ranks read; the highest peak is "
        f"{format_bytes(max(one.peak_allocated for one in read))}."
    ]
    if not job.outliers:
        lines.append("No rank stands out.")
    for outlier in job.outliers:
        name = "A file" if outlier.rank.rank is None else f"Rank {outlier.rank.rank}"
        lines.append(f"{name} stands out ({', '.join(outlier.reasons)}): {' '.join(verdict_lines(outlier.compared))}")
        only = outlier.compared.sites[outlier.compared.sites["status"] == "new"]
        if len(only):
            named = [f"{row.site} ({format_bytes(int(row.other_bytes))})" for row in rows(only.head(5))]
            lines.append(f"Only there: {', '.join(named)}.")
    if job.more_outliers:
        lines.append(f"{job.more_outliers:,} more ranks stand out.")
    return lines


def print_job(job: Job) -> None:
    """Print the table, and what the odd ranks do."""
    out = plain_console()
    out.print(text_table([(name, name != "file") for name in _COLUMNS], _table(job)))
    out.print()
    for line in _lines(job):
        out.print(Text(line))


def job_markdown(job: Job) -> str:
    """Write the table, and what the odd ranks do, for a ticket."""
    lines = [f"### snapana: {escape(job.name)}", ""]
    lines += [escape(line.replace("`", "")) + "  " for line in _lines(job)]
    lines += ["", *table(_COLUMNS, [[escape(cell) for cell in row] for row in _table(job)])]
    return "\n".join(lines)


def _called(rank: Rank) -> str:
    return rank.name if rank.rank is None else f"rank {rank.rank}"


def render_job(job: Job, selection: Selection, folded: str = "") -> str:
    """Write the page of a job; ``folded`` says what was left out to keep it small."""
    from snapana.report.charts import comparison_curve

    drawn = [one for one in job.ranks if one.curve is not None][:_MOST_CURVES]
    curves = [(_called(one), *(one.curve or ()), None) for one in drawn]
    page = environment().get_template("job.html.j2")
    return page.render(
        version=__version__,
        job=job,
        redacted=redacted_line(job.redacted),
        folded=folded,
        columns=_COLUMNS,
        table=_table(job),
        lines=_lines(job)[:1],
        chart=Markup(comparison_curve(curves, "share of the window, by events")) if curves else None,
        runs=[{**page_run(one.compared, selection), "outlier": one} for one in job.outliers],
    )
