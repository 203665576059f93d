"""``snapana report``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snapana.cli.common import (
    SizeType,
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
    redact_options,
    rules_option,
    step_option,
    tell_redacted,
    trace_option,
    write_new,
)
from snapana.errors import SnapanaError
from snapana.units import format_bytes

if TYPE_CHECKING:
    from snapana.report.select import Selection


@click.command()
@input_options
@at_option
@card_options
@step_option
@rules_option
@dims_option
@trace_option
@redact_options
@click.option("-o", "--output", default=None, metavar="FILE", help="Where to write; - for stdout. Default: INPUT.html.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option(
    "--max-size",
    type=SizeType(),
    default="10MiB",
    show_default=True,
    metavar="SIZE",
    help="Show fewer rows rather than write a larger page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where the report went as JSON.")
def report(
    input: str,
    output: str | None,
    force: bool,
    max_size: int,
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
      snapana report profil_vram.pickle --redact -o public.html
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
    render: Callable[[Selection, str], str]
    if folder:
        from snapana.report.job import render_job

        job = load_job(Path(input), known)
        render = partial(render_job, job)
    else:
        with progress() as tell:
            found = analyse(input, progress=tell, **known)
            tell("Writing the report")
        if isinstance(found, Timeline):
            timeline = found
            render = lambda selection, folded: render_timeline(timeline)  # noqa: E731
        else:
            render = partial(render_report, found, judge(found))
    page = _fitting(render, selection, max_size)
    tell_redacted(known["redactor"], options["redact_list"])
    if output == "-":
        click.echo(page, nl=False)
        return
    write_new(target, page, force=force)
    if as_json:
        print_json({"output": str(target), "size_bytes": target.stat().st_size})


def _fitting(render: Callable[[Selection, str], str], selection: Selection, most: int) -> str:
    """Render, with fewer and fewer rows until the page is small enough.

    Raises:
        SnapanaError: ``output.too_large`` where even one row a table is too much.

    """
    page = render(selection, "")
    rows = selection.top or 200
    while len(page.encode()) > most:
        if rows == 1:
            raise SnapanaError(
                "output.too_large",
                f"The page has {format_bytes(len(page.encode()))} at least; --max-size is {format_bytes(most)}.",
                "Allow more, or attach summary --markdown.",
            )
        rows = max(1, rows // 2)
        few = replace(selection, top=rows)
        why = f"to keep the page under {format_bytes(most)}; their sums are whole"
        page = render(few, f"Tables show at most {rows:,} row{'s' if rows > 1 else ''}, {why}.")
    return page
