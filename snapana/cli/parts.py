"""Commands that print one part of the summary each."""

from __future__ import annotations

from typing import Any

import click

from snapana.cli.common import at_option, card_options, facts, input_options, print_json, progress
from snapana.errors import SnapanaError


def _part(name: str, doc: str, *options: Any) -> click.Command:
    """Make the command that prints the part ``name`` of every device."""

    def run(
        input: str,
        top: int,
        min_size: int,
        device: int | None,
        max_input: int,
        as_json: bool,
        at: str | None = None,
    ) -> None:
        _print(name, input, top, min_size, device, max_input, as_json, at=at)

    run.__doc__ = f"{doc}\n\n\b\nExample:\n  snapana {name} profil_vram.pickle --top 10\n"
    wrapped: Any = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(run)
    for option in options:
        wrapped = option(wrapped)
    return click.command(name)(input_options(wrapped))


def _print(
    name: str,
    input: str,
    top: int,
    min_size: int,
    device: int | None,
    max_input: int,
    as_json: bool,
    **known: Any,
) -> None:
    from snapana.analyses.overview import overview
    from snapana.loading import load_snapshot
    from snapana.report.select import Selection

    selection = Selection(top or None, min_size)
    with progress() as tell:
        snapshot = load_snapshot(input, max_input=max_input, progress=tell)
        results = overview(snapshot, device=device, progress=tell, **known)
    if as_json:
        from snapana.report.contract import part

        print_json(part(results, name, selection))
    else:
        from snapana.report.text import print_part

        print_part(results, name, selection)


peak = _part(
    "peak", "Print what was allocated at the peak of INPUT, by line of code, with the sum of the rest.", at_option
)
fragmentation = _part(
    "fragmentation",
    "Print what INPUT had reserved but not used, pool by pool, which blocks keep it, and how that went on.",
    at_option,
)
leaks = _part("leaks", "Print the lines of INPUT whose memory grows with every step.")


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


_oom_command: Any = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(_oom)
oom = click.command("oom")(input_options(card_options(_oom_command), required=False))
