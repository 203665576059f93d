"""``snapana whatif``."""

from __future__ import annotations

import os

import click

from snapana.cli.common import SizeType, card_options, facts, print_json, progress
from snapana.errors import SnapanaError
from snapana.units import format_bytes


@click.command()
@click.argument("input", metavar="INPUT")
@click.option(
    "--conf",
    "confs",
    multiple=True,
    metavar="CONF",
    help="Settings as of PYTORCH_CUDA_ALLOC_CONF; may be given several times.",
)
@click.option("--sweep", is_flag=True, help="Try the settings that can change anything for this recording.")
@click.option("--smallest", is_flag=True, help="Find the smallest capacity that holds the requests, by setting.")
@click.option(
    "--empty-cache-at",
    default=None,
    metavar="EVENT|each-step|NAME",
    help="Call empty_cache() besides: after an event, each step, or each range of that annotation.",
)
@click.option("--preallocate", type=SizeType(), default=None, metavar="SIZE", help="Take and free one block first.")
@click.option(
    "--until",
    default=None,
    metavar="EVENT|NAME",
    help="Let --conf hold up to an event, or the first range of that annotation; the recorded settings from there on.",
)
@card_options
@click.option("--device", type=int, default=None, help="Only this device; all by default.")
@click.option("--max-input", type=SizeType(), default="16GiB", help="Refuse more than this, decompressed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def whatif(
    input: str,
    confs: tuple[str, ...],
    sweep: bool,
    smallest: bool,
    empty_cache_at: str | None,
    preallocate: int | None,
    until: str | None,
    message: str | None,
    capacity: int | None,
    card: int | None,
    device: int | None,
    max_input: int,
    as_json: bool,
) -> None:
    """Say what the requests of INPUT would have reserved under other allocator settings.

    The recorded settings are run again first, to show how exact the model is here. --capacity is the most that may be
    reserved; without it, that of the recorded failure counts, if there was one. Without --conf, --sweep is meant.

    \b
    Examples:
      snapana whatif profil_vram.pickle --conf expandable_segments:True --conf max_split_size_mb:512
      snapana whatif profil_vram.pickle --sweep --capacity 24GiB
      snapana whatif profil_vram.pickle --preallocate 20GiB --empty-cache-at each-step
      snapana whatif profil_vram.pickle --conf expandable_segments:True --until "## forward ##"
    """
    from snapana.analyses.overview import with_history
    from snapana.analyses.requests import changed, known_limit, limit_is_guess, turning_point
    from snapana.analyses.whatif import what_if
    from snapana.loading import load_any
    from snapana.snapshot.model import Snapshot

    known = facts(message, capacity, card)
    with progress() as tell:
        snapshot = load_any(input, max_input=max_input, progress=tell)
        if not isinstance(snapshot, Snapshot):
            raise SnapanaError(
                "usage.whatif", f"{input} is no memory snapshot.", "A trace does not tell what the allocator was asked."
            )
        found = [
            what_if(
                snapshot,
                number,
                confs,
                limit=known_limit(snapshot, number, known),
                sweep=sweep or not (confs or empty_cache_at or preallocate),
                smallest=smallest,
                workers=os.cpu_count() or 1,
                change=changed(snapshot, number, empty_cache_at, preallocate),
                guessed=limit_is_guess(snapshot, number, known),
                until=None if until is None else turning_point(snapshot, number, until),
                progress=tell,
            )
            for number in with_history(snapshot, device)
        ]
    changes = ", ".join(
        text
        for text in (
            f"empty_cache() at {empty_cache_at}" if empty_cache_at else "",
            f"{format_bytes(preallocate)} preallocated" if preallocate else "",
            f"until {until}" if until else "",
        )
        if text
    )
    if as_json:
        from snapana.report.whatif import whatif_document

        print_json(whatif_document(found, changes))
    else:
        from snapana.report.whatif import print_whatif

        print_whatif(found, changes)
