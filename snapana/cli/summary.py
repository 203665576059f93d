"""``snapana summary``."""

from __future__ import annotations

import click

from snapana.cli.common import (
    card_options,
    dims_from,
    dims_option,
    facts,
    input_options,
    print_json,
    progress,
    rules_from,
    rules_option,
    step_option,
)


@click.command()
@input_options
@card_options
@step_option
@rules_option
@dims_option
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1).")
@click.option("--markdown", is_flag=True, help="Print Markdown, to paste into a ticket.")
def summary(
    input: str,
    top: int,
    min_size: int,
    device: int | None,
    max_input: int,
    message: str | None,
    capacity: int | None,
    card: int | None,
    step: str | None,
    rules: str | None,
    dims: str | None,
    as_json: bool,
    markdown: bool,
) -> None:
    """Print peak, fragmentation, leaks and out-of-memory events of INPUT in short.

    INPUT is a memory snapshot (.pickle, also .gz, .xz, .zst, .zip), a memory-viz HTML page, or - for stdin.

    \b
    Examples:
      snapana summary profil_vram.pickle
      snapana summary profil_vram.pickle --json | jq .findings
    """
    from snapana.analyses.overview import overview
    from snapana.findings import judge
    from snapana.loading import load_snapshot
    from snapana.report.select import Selection

    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other.")
    selection = Selection(top or None, min_size, dims_from(dims))
    known, own = facts(message, capacity, card), rules_from(rules)
    with progress() as tell:
        snapshot = load_snapshot(input, max_input=max_input, progress=tell)
        results = overview(snapshot, device=device, facts=known, step=step, rules=own, progress=tell)
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
