"""``snapana summary``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snapana.cli.common import (
    card_options,
    dims_option,
    input_options,
    load_job,
    print_json,
    progress,
    read_options,
    redact_options,
    rules_option,
    step_option,
    tell_redacted,
    trace_option,
)

if TYPE_CHECKING:
    from snapana.trace.model import Timeline


@click.command()
@input_options
@card_options
@step_option
@rules_option
@dims_option
@trace_option
@redact_options
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1).")
@click.option("--markdown", is_flag=True, help="Print Markdown, to paste into a ticket.")
def summary(
    input: str,
    as_json: bool,
    markdown: bool,
    **options: Any,
) -> None:
    """Print peak, fragmentation, leaks and out-of-memory events of INPUT in short.

    INPUT is a memory snapshot (.pickle, also .gz, .xz, .zst, .zip), a profiler trace, a memory-viz HTML page, or - for
    stdin. A folder is a job: one table of all its ranks, and what the odd ones do that the others do not.

    \b
    Examples:
      snapana summary profil_vram.pickle
      snapana summary profil_vram.pickle --json | jq .findings
      snapana summary runs/monday/
    """
    from snapana.cli.analyse import analyse
    from snapana.findings import judge
    from snapana.trace.model import Timeline

    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other.")
    selection, known = read_options(options)
    if Path(input).is_dir():
        _job(Path(input), known, options["redact_list"], as_json=as_json, markdown=markdown)
        return
    with progress() as tell:
        results = analyse(input, progress=tell, **known)
    tell_redacted(known["redactor"], options["redact_list"])
    if isinstance(results, Timeline):
        _timeline(results, as_json=as_json, markdown=markdown)
        return
    found = judge(results)
    if as_json:
        from snapana.report.contract import document

        print_json(document(results, found, selection))
    elif markdown:
        from snapana.report.markdown import summary_markdown

        click.echo(summary_markdown(results, found, selection))
    else:
        from snapana.report.text import print_summary

        print_summary(results, found, selection)


def _job(folder: Path, known: dict[str, Any], listed: str | None, *, as_json: bool, markdown: bool) -> None:
    from snapana.report.job import job_document, job_markdown, print_job

    job = load_job(folder, known)
    tell_redacted(known["redactor"], listed)
    if as_json:
        print_json(job_document(job))
    elif markdown:
        click.echo(job_markdown(job))
    else:
        print_job(job)


def _timeline(timeline: Timeline, *, as_json: bool, markdown: bool) -> None:
    from snapana.report.timeline import print_timeline, timeline_document, timeline_markdown

    if as_json:
        print_json(timeline_document(timeline))
    elif markdown:
        click.echo(timeline_markdown(timeline))
    else:
        print_timeline(timeline)
