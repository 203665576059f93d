"""``snapana compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snapana.cli.common import (
    check_new,
    default_output,
    input_options,
    print_json,
    progress,
    read_options,
    redact_options,
    rules_option,
    step_option,
    tell_redacted,
    write_new,
)
from snapana.errors import SnapanaError
from snapana.plain import plain_text

if TYPE_CHECKING:
    from snapana.loading import Loaded


@click.command()
@input_options
@click.argument("others", metavar="OTHER...", nargs=-1, required=True)
@step_option
@rules_option
@click.option("-o", "--output", default=None, metavar="FILE", help="Write an HTML page; - for stdout.")
@redact_options
@click.option("--html", is_flag=True, help="Write an HTML page named after the two.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option(
    "--align",
    type=click.Choice(["step", "time", "fraction"]),
    default=None,
    help="What the curves are laid over; by default steps where there are some, else the fraction of the window.",
)
@click.option("--strict-reserved", is_flag=True, help="Exit with 1 if reserved grows over 5% more than allocated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print Markdown, to paste into a ticket.")
def compare(
    input: str,
    others: tuple[str, ...],
    output: str | None,
    html: bool,
    force: bool,
    align: str | None,
    strict_reserved: bool,
    as_json: bool,
    markdown: bool,
    **options: Any,
) -> int:
    """Say how OTHER differs from INPUT, the base: peaks, fragmentation, settings, and every line of code at the peak.

    Lines are found again though the program was edited: by function, the file it is in, and what it calls. With more
    than one OTHER each is compared with the base.

    \b
    Examples:
      snapana compare before.pickle after.pickle
      snapana compare before.pickle after.pickle -o ticket-1234.html
      snapana compare monday.pickle tuesday.pickle wednesday.pickle --markdown
    """
    from snapana.analyses.compare import compare as compare_two
    from snapana.cli.analyse import analyse, only_overview
    from snapana.loading import load_any

    if as_json and markdown:
        raise click.UsageError("--json and --markdown exclude each other.")
    if [input, *others].count("-") > 1:
        raise SnapanaError("usage", "Only one input can come from stdin.", "Give files.")
    target = None
    if output is not None or html:
        target = Path(f"{default_output(input, '')}-{default_output(others[0], '')}.html" if output is None else output)
        if output != "-":
            check_new(target, force=force)
    selection, known = read_options(options)
    names = tell_apart([input, *others])
    if known["redactor"] is not None:
        names = ["base", "other"] if len(others) == 1 else ["base", *(f"run {at + 2}" for at in range(len(others)))]
    with progress() as tell:
        read = []
        redactor = known["redactor"]
        loaded: list[Loaded | None] = [None] * len(names)
        if redactor is not None:
            loaded = [load_any(path, max_input=known["max_input"], progress=tell) for path in [input, *others]]
            for one in loaded:
                redactor.learn_from(one)
        for path, name, one in zip([input, *others], names, loaded, strict=True):
            tell(f"Reading {name}")
            called = name if redactor is not None else ""
            read.append(only_overview(analyse(path, progress=tell, called=called, loaded=one, **known)))
        found = [compare_two(read[0], one, (names[0], name)) for one, name in zip(read[1:], names[1:], strict=True)]
    tell_redacted(known["redactor"], options["redact_list"])
    if target is not None:
        from snapana.report.compare import render_comparison

        page = render_comparison(found, selection, align)
        if output == "-":
            click.echo(page, nl=False)
        else:
            write_new(target, page, force=force)
    if as_json:
        from snapana.report.compare import compare_document

        print_json(compare_document(found, selection))
    elif markdown:
        from snapana.report.compare import comparison_markdown

        click.echo(comparison_markdown(found, selection))
    elif target is None:
        from snapana.report.compare import print_comparisons

        print_comparisons(found, selection)
    return 1 if strict_reserved and any(one.looser for one in found) else 0


def tell_apart(paths: Sequence[str]) -> list[str]:
    """Name files as shortly as keeps different ones apart: with as many folders as that takes."""
    parts = [["stdin"] if path == "-" else [plain_text(part) for part in Path(path).parts] for path in paths]
    names = [own[-1] for own in parts]
    for depth in range(2, 8):
        if len(set(names)) == len(set(paths)):
            break
        names = ["/".join(own[-depth:]) for own in parts]
    return names
