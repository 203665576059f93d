"""Commands that print one part of the summary each."""

from __future__ import annotations

from typing import Any

import click

from snapana.analyses.choices import GROUPS, TRACE_GROUPS
from snapana.cli.common import (
    at_option,
    card_options,
    dims_option,
    facts,
    input_options,
    print_json,
    progress,
    read_options,
    rules_option,
    step_option,
    trace_option,
)
from snapana.errors import SnapanaError


def _print(name: str, input: str, as_json: bool, options: dict[str, Any], by: str = "site") -> None:
    """Analyse and print one part of every device."""
    from snapana.cli.analyse import analyse, only_overview

    selection, known = read_options(options)
    with progress() as tell:
        results = only_overview(analyse(input, progress=tell, **known))
    if as_json:
        from snapana.report.contract import part

        print_json(part(results, name, selection, by=by))
    elif by != "site":
        from snapana.report.text import print_groups

        print_groups(results, by, selection)
    else:
        from snapana.report.text import print_part

        print_part(results, name, selection)


def _command(name: str, run: Any, *options: Any, required: bool = True) -> click.Command:
    wrapped: Any = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(run)
    for option in options:
        wrapped = option(wrapped)
    return click.command(name)(input_options(wrapped, required=required))


def _peak(input: str, by: str, as_json: bool, **options: Any) -> None:
    """Print what was allocated at the peak of INPUT, by line of code or otherwise, with the sum of the rest.

    Operators, modules and forward operators are known of a profiler trace, or of a snapshot with --trace.

    Rules of your own for categories go before the built-in ones; all patterns of a rule must be found:

    \b
      [[rule]]
      category = "inputs"
      function = "^collate$"
      file = "data/.*[.]py$"

    \b
    Examples:
      snapana peak profil_vram.pickle --top 10
      snapana peak profil_vram.pickle --by category --at optimizer
      snapana peak profil_vram.pickle --dims vocab=32000,hidden=2048,seq=1024
      snapana peak profil_vram.pickle --trace run.pt.trace.json.gz --by module
    """
    _print("peak", input, as_json, options, by)


def _fragmentation(input: str, as_json: bool, **options: Any) -> None:
    """Print what INPUT had reserved but not used, pool by pool, which blocks keep it, and how that went on.

    \b
    Example:
      snapana fragmentation profil_vram.pickle --at oom
    """
    _print("fragmentation", input, as_json, options)


def _leaks(input: str, as_json: bool, **options: Any) -> None:
    """Print the lines of INPUT whose memory grows with every step, and how memory goes on from step to step.

    With --card or --capacity it says when memory runs out.

    \b
    Examples:
      snapana leaks profil_vram.pickle --top 10
      snapana leaks profil_vram.pickle --step "## train ##" --card 80GiB
    """
    _print("leaks", input, as_json, options)


peak = _command(
    "peak",
    _peak,
    at_option,
    rules_option,
    dims_option,
    trace_option,
    click.option(
        "--by", type=click.Choice([*GROUPS, *TRACE_GROUPS]), default="site", show_default=True, help="What to group by."
    ),
)
fragmentation = _command("fragmentation", _fragmentation, at_option)
leaks = _command("leaks", _leaks, step_option, card_options)


def _oom(input: str | None, as_json: bool, **options: Any) -> None:
    """Explain every allocation of INPUT that failed: why it did not fit, and what would make it fit.

    PyTorch's own message, from --message, tells what INPUT does not: the card, its other processes, a limit. Without
    INPUT the message alone is explained.

    \b
    Examples:
      snapana oom profil_vram.pickle
      snapana oom profil_vram.pickle --message train.log
      tail -50 train.log | snapana oom --message -
    """
    if input is not None:
        _print("oom", input, as_json, options)
        return
    if options["capacity"] is not None or options["card"] is not None:
        raise SnapanaError(
            "usage", "--card and --capacity go with INPUT.", "Without it the message alone is explained."
        )
    known = facts(options["message"], None, None)
    if not known.messages:
        raise SnapanaError("usage", "oom needs INPUT, --message, or both.", "See 'snapana oom --help'.")
    from snapana.analyses.oom_message import explain_message

    found = [explain_message(one) for one in known.messages]
    if as_json:
        from snapana.report.contract import explanation_document

        print_json(explanation_document(found))
    else:
        from snapana.report.text import print_explanations

        print_explanations(found)


oom = _command("oom", _oom, card_options, required=False)
