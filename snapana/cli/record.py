"""``snapana record``."""

from __future__ import annotations

import re

import click

from snapana.errors import SnapanaError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-o", "--output", default="profil_vram.pickle", show_default=True, metavar="FILE", help="File to write.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.option("--steps", type=click.IntRange(1), default=None, metavar="N", help="Make room for so many steps.")
@click.option("--every", type=click.IntRange(1), default=None, metavar="N", help="Write after every N steps as well.")
@click.option("--max-entries", type=click.IntRange(1000), default=None, metavar="N", help="Size of the ring.")
@click.option("--trace", default=None, metavar="FILE", help="Profile some steps as well, to a Chrome trace.")
@click.option("--trace-steps", default="2:2", show_default=True, metavar="WAIT:TAKE", help="Which steps to profile.")
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def record(
    output: str,
    module: bool,
    steps: int | None,
    every: int | None,
    max_entries: int | None,
    trace: str | None,
    trace_steps: str,
    script: str,
    arguments: tuple[str, ...],
) -> int:
    """Run a training SCRIPT with its ARGS, and record its GPU memory, without touching it.

    The file is written at an out-of-memory failure, at the end, on SIGUSR1, and before SIGTERM ends the process; each
    rank of a job writes one of its own. Beside it lies what the file itself lacks: the card, a limit, the rank. Each
    step of the optimizer is marked. Needs torch.

    \b
    Examples:
      snapana record train.py --lr 1e-4
      snapana record -o runs/a.pickle --trace runs/a.json.gz -m mypackage.train
      torchrun --nproc-per-node 8 --no-python snapana record train.py
    """
    from importlib.util import find_spec
    from pathlib import Path

    from snapana.recording.runner import run_script

    found = re.fullmatch(r"(\d+):(\d+)", trace_steps)
    if found is None or int(found.group(2)) == 0:
        raise SnapanaError("usage.trace_steps", f"{trace_steps!r} is no WAIT:TAKE.", "Write it like 2:2.")
    if not module and not Path(script).is_file():
        raise SnapanaError("input.not_found", f"There is no script {script}.", "For a module use -m.")
    if find_spec("torch") is None:
        raise SnapanaError("record.no_torch", "torch is not installed here.", "pip install 'snapana[record]'")
    return run_script(
        [script, *arguments],
        module=module,
        output=output,
        steps=True if steps is None else steps,
        every=every,
        max_entries=max_entries,
        trace=trace,
        trace_steps=(int(found.group(1)), int(found.group(2))),
    )
