"""Commands that print one part of the summary each."""

from __future__ import annotations

import click

from snapana.cli.common import input_options, print_json, progress


def _part(name: str, doc: str) -> click.Command:
    """Make the command that prints the part ``name`` of every device."""

    def run(input: str, top: int, min_size: int, device: int | None, max_input: int, as_json: bool) -> None:
        from snapana.analyses.overview import overview
        from snapana.loading import load_snapshot
        from snapana.report.select import Selection

        selection = Selection(top or None, min_size)
        with progress() as tell:
            results = overview(load_snapshot(input, max_input=max_input, progress=tell), device=device)
        if as_json:
            from snapana.report.contract import part

            print_json(part(results, name, selection))
        else:
            from snapana.report.text import print_part

            print_part(results, name, selection)

    run.__doc__ = f"{doc}\n\n\b\nExample:\n  snapana {name} profil_vram.pickle --top 10\n"
    wrapped = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(run)
    return click.command(name)(input_options(wrapped))


peak = _part("peak", "Print what was allocated at the peak of INPUT, by line of code, with the sum of the rest.")
fragmentation = _part(
    "fragmentation", "Print what INPUT had reserved but not used, pool by pool, and which blocks keep it."
)
leaks = _part("leaks", "Print the lines of INPUT whose memory grows with every step.")
oom = _part("oom", "Explain every allocation of INPUT that failed.")
