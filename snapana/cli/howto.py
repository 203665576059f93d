"""``snapana howto``."""

from __future__ import annotations

import click

from snapana.errors import SnapanaError


@click.command()
@click.argument("topic", required=False, metavar="[TOPIC]")
@click.option("--max-entries", type=click.IntRange(1000), default=1_000_000, help="Size of the ring, in entries.")
def howto(topic: str | None, max_entries: int) -> None:
    """Print code to paste that records what snapana reads; without TOPIC the topics.

    \b
    Examples:
      snapana howto
      snapana howto oom
    """
    from snapana.recording.snippets import installed_torch, snippets

    torch = installed_torch()
    found = snippets(torch, max_entries)
    if topic is None:
        for one in found.values():
            click.echo(f"{one.topic:10} {one.about}")
        click.echo("\nsnapana howto TOPIC prints the code; snapana record train.py needs none.")
        return
    if topic not in found:
        raise SnapanaError("usage.howto", f"There is no topic {topic!r}.", f"There are: {', '.join(found)}.")
    version = "" if torch is None else f", for torch {torch[0]}.{torch[1]}"
    click.echo(f"# {found[topic].about}{version}")
    click.echo(found[topic].code)
