"""``snapana report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from snapana.cli.common import (
    at_option,
    card_options,
    check_new,
    default_output,
    dims_option,
    input_options,
    load_job,
    print_json,
    progress,
    read_options,
    rules_option,
    step_option,
    trace_option,
    write_new,
)


@click.command()
@input_options
@at_option
@card_options
@step_option
@rules_option
@dims_option
@trace_option
@click.option("-o", "--output", default=None, metavar="FILE", help="Where to write; - for stdout. Default: INPUT.html.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print where the report went as JSON.")
def report(
    input: str,
    output: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write what filled the GPU's memory as one self-contained HTML file.

    INPUT is a memory snapshot (.pickle, also .gz, .xz, .zst, .zip), a profiler trace, a memory-viz HTML page, or - for
    stdin. A folder is a job: a page with all its ranks.
    The page opens from disk, offline, and loads nothing: attach it to a bug ticket.

    \b
    Examples:
      snapana report profil_vram.pickle
      snapana report profil_vram.pickle -o ticket-1234.html --top 50
    """
    from snapana.cli.analyse import analyse
    from snapana.findings import judge
    from snapana.report.html import render_report
    from snapana.report.timeline import render_timeline
    from snapana.trace.model import Timeline

    folder = Path(input).is_dir()
    target = (
        default_output(str(Path(input).resolve()) if folder else input, ".html") if output is None else Path(output)
    )
    if output != "-":
        check_new(target, force=force)
    selection, known = read_options(options)
    if folder:
        from snapana.report.job import render_job

        page = render_job(load_job(Path(input), known), selection)
    else:
        with progress() as tell:
            found = analyse(input, progress=tell, **known)
            tell("Writing the report")
            if isinstance(found, Timeline):
                page = render_timeline(found)
            else:
                page = render_report(found, judge(found), selection)
    if output == "-":
        click.echo(page, nl=False)
        return
    write_new(target, page, force=force)
    if as_json:
        print_json({"output": str(target), "size_bytes": target.stat().st_size})
