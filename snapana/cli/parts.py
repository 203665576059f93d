"""Commands that print one part of the summary each."""

from __future__ import annotations

from typing import Any

import click

from snapana.cli.common import (
    at_option,
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
    trace_option,
)
from snapana.errors import SnapanaError


def _print(
    name: str,
    input: str,
    top: int,
    min_size: int,
    device: int | None,
    max_input: int,
    as_json: bool,
    by: str = "site",
    dims: str | None = None,
    **known: Any,
) -> None:
    """Analyse and print one part of every device."""
    from snapana.cli.analyse import analyse, only_overview
    from snapana.report.select import Selection

    selection = Selection(top or None, min_size, dims_from(dims))
    with progress() as tell:
        results = only_overview(analyse(input, max_input=max_input, progress=tell, device=device, **known))
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


_BY = ("site", "category", "file", "function", "annotation", "step", "stream", "pool")
_TRACE_BY = ("operator", "module", "forward_operator")


def _peak(
    input: str,
    top: int,
    min_size: int,
    device: int | None,
    max_input: int,
    at: str | None,
    by: str,
    rules: str | None,
    dims: str | None,
    trace: str | None,
    as_json: bool,
) -> None:
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
    known = {"at": at, "rules": rules_from(rules), "trace": trace}
    _print("peak", input, top, min_size, device, max_input, as_json, by, dims, **known)


def _fragmentation(
    input: str, top: int, min_size: int, device: int | None, max_input: int, at: str | None, as_json: bool
) -> None:
    """Print what INPUT had reserved but not used, pool by pool, which blocks keep it, and how that went on.

    \b
    Example:
      snapana fragmentation profil_vram.pickle --at oom
    """
    _print("fragmentation", input, top, min_size, device, max_input, as_json, at=at)


def _leaks(
    input: str,
    top: int,
    min_size: int,
    device: int | None,
    max_input: int,
    step: str | None,
    message: str | None,
    capacity: int | None,
    card: int | None,
    as_json: bool,
) -> None:
    """Print the lines of INPUT whose memory grows with every step, and how memory goes on from step to step.

    With --card or --capacity it says when memory runs out.

    \b
    Examples:
      snapana leaks profil_vram.pickle --top 10
      snapana leaks profil_vram.pickle --step "## train ##" --card 80GiB
    """
    known = facts(message, capacity, card)
    _print("leaks", input, top, min_size, device, max_input, as_json, step=step, facts=known)


peak = _command(
    "peak",
    _peak,
    at_option,
    rules_option,
    dims_option,
    trace_option,
    click.option(
        "--by", type=click.Choice([*_BY, *_TRACE_BY]), default="site", show_default=True, help="What to group by."
    ),
)
fragmentation = _command("fragmentation", _fragmentation, at_option)
leaks = _command("leaks", _leaks, step_option, card_options)


def _oom(
    input: str | None,
    top: int,
    min_size: int,
    device: int | None,
    max_input: int,
    message: str | None,
    capacity: int | None,
    card: int | None,
    as_json: bool,
) -> None:
    """Explain every allocation of INPUT that failed: why it did not fit, and what would make it fit.

    PyTorch's own message, from --message, tells what INPUT does not: the card, its other processes, a limit. Without
    INPUT the message alone is explained.

    \b
    Examples:
      snapana oom profil_vram.pickle
      snapana oom profil_vram.pickle --message train.log
      tail -50 train.log | snapana oom --message -
    """
    known = facts(message, capacity, card)
    if input is not None:
        _print("oom", input, top, min_size, device, max_input, as_json, facts=known)
        return
    if capacity is not None or card is not None:
        raise SnapanaError(
            "usage", "--card and --capacity go with INPUT.", "Without it the message alone is explained."
        )
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
