"""What all text output has in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


class _PlainConsole(Console):
    """Leaves it to the command line what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Pass the error on; rich would exit with 1, which here says that a check failed."""
        raise BrokenPipeError


def plain_console() -> Console:
    """Give a console on stdout; rich finds out what it can show."""
    console = _PlainConsole(highlight=False)
    # Redirected output has no width of its own: do not fold tables at 80 columns.
    return console if console.is_terminal else _PlainConsole(highlight=False, width=160)


def write_heading(console: Console, text: str) -> None:
    """Print a heading, apart from what is before it."""
    console.print()
    console.print(Text(text, style="bold underline"))


def text_table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]], *, foot: int = 0) -> Table:
    """Build a table; ``columns`` are (heading, is a number), the last ``foot`` rows stand apart."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading, number in columns:
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    lines = list(rows)
    for position, row in enumerate(lines):
        table.add_row(*(Text(cell) for cell in row), style="dim" if position >= len(lines) - foot else "")
    return table
