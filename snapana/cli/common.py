"""Options and steps that all commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from snapana.errors import SnapanaError
from snapana.units import parse_size

if TYPE_CHECKING:
    from snapana.analyses.failure import Facts
    from snapana.analyses.job import Job
    from snapana.analyses.rules import Rule
    from snapana.redact import Redactor
    from snapana.report.select import Selection

Command = TypeVar("Command", bound=Callable[..., Any])


class SizeType(click.ParamType[int]):
    """A number of bytes, such as ``64MiB``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size; usage error for anything else."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except SnapanaError as error:
            self.fail(f"{error.message}. {error.hint}", param, ctx)


def input_options(command: Command, *, required: bool = True) -> Command:
    """Add INPUT and the options that say what of it is looked at."""
    for option in (
        click.option("--max-input", type=SizeType(), default="16GiB", help="Refuse more than this, decompressed."),
        click.option("--device", type=int, default=None, help="Only this device; all by default."),
        click.option("--min-size", type=SizeType(), default="0", help="Leave out rows smaller than this."),
        click.option(
            "--top",
            type=click.IntRange(min=0),
            default=20,
            show_default=True,
            help="Rows per table; 0 for all.",
        ),
        click.argument("input", metavar="INPUT" if required else "[INPUT]", required=required),
    ):
        command = option(command)
    return command


def card_options(command: Command) -> Command:
    """Add what may be known besides INPUT: PyTorch's message, a limit, the card's size."""
    for option in (
        click.option("--card", type=SizeType(), default=None, metavar="SIZE", help="The card's size, such as 80GiB."),
        click.option(
            "--capacity", type=SizeType(), default=None, metavar="SIZE", help="The most that PyTorch may reserve."
        ),
        click.option(
            "--message",
            default=None,
            metavar="TEXT|FILE|-",
            help="PyTorch's out-of-memory message, or a log that holds it: fills in what INPUT lacks.",
        ),
    ):
        command = option(command)
    return command


at_option = click.option(
    "--at",
    default=None,
    metavar="INSTANT",
    help="Where to look: peak, peak_reserved, oom, optimizer, end, or the index of an event.",
)
step_option = click.option(
    "--step", default=None, metavar="NAME", help="The annotation (record_function) whose ranges are steps."
)
rules_option = click.option(
    "--rules", default=None, metavar="FILE", help="A TOML file of [[rule]] tables: category and patterns."
)
trace_option = click.option(
    "--trace", default=None, metavar="FILE", help="A profiler trace of the same run: adds operators and modules."
)


def redact_options(command: Command) -> Command:
    """Add what makes outputs fit for strangers."""
    for option in (
        click.option(
            "--redact-list", default=None, metavar="FILE", help="Write which placeholder stands for what; keep it."
        ),
        click.option(
            "--redact",
            is_flag=True,
            help="Replace names of users, hosts and folders, and texts; figures stay.",
        ),
    ):
        command = option(command)
    return command


dims_option = click.option(
    "--dims",
    default=None,
    metavar="NAME=N,...",
    help="Dimensions of the model, such as vocab=32000,hidden=2048: sizes are written as their products.",
)


def read_options(options: dict[str, Any]) -> tuple[Selection, dict[str, Any]]:
    """Turn the options of a command into what is shown, and what ``analyse`` is told.

    Args:
        options: as click gives them: those of ``input_options`` but INPUT, and any others of this module.

    """
    from snapana.report.select import Selection

    known = dict(options)
    selection = Selection(known.pop("top") or None, known.pop("min_size"), dims_from(known.pop("dims", None)))
    if "message" in known:
        known["facts"] = facts(known.pop("message"), known.pop("capacity"), known.pop("card"))
    if "redact" in known:
        known["redactor"] = redactor_of(known.pop("redact"), known["redact_list"])
        known.pop("redact_list")
    if "rules" in known:
        known["rules"] = rules_from(known["rules"])
    return selection, known


def dims_from(text: str | None) -> dict[str, int]:
    """Read the model's dimensions, if any."""
    if text is None:
        return {}
    from snapana.analyses.dims import parse_dims

    return parse_dims(text)


def rules_from(path: str | None) -> tuple[Rule, ...]:
    """Read the user's rules, if any."""
    if path is None:
        return ()
    from snapana.analyses.rules import read_rules

    return read_rules(Path(path))


def redactor_of(redact: bool, listed: str | None) -> Redactor | None:
    """Give what redacts, if that was asked for."""
    if listed is not None:
        check_new(Path(listed), force=False)
    if not redact and listed is None:
        return None
    from snapana.redact import Redactor

    return Redactor()


def tell_redacted(redactor: Redactor | None, listed: str | None) -> None:
    """Say on stderr how much was replaced, and write the list if it was asked for."""
    if redactor is None:
        return
    from snapana.redact import summary_of

    click.echo(f"Redacted {summary_of(redactor.counts)}", err=True)
    if listed is not None:
        write_new(Path(listed), "".join(f"{line}\n" for line in redactor.lines()), force=False)


def facts(message: str | None, capacity: int | None, card: int | None) -> Facts:
    """Gather what is known besides the input.

    Raises:
        SnapanaError: ``message.not_found`` where the text holds no out-of-memory message.

    """
    from snapana.analyses.failure import Facts
    from snapana.message import find_messages

    if message is None:
        return Facts(capacity, card)
    found = find_messages(_message_text(message))
    if not found:
        raise SnapanaError(
            "message.not_found",
            "No out-of-memory message was found in what --message gives.",
            "It is the text that begins 'CUDA out of memory. Tried to allocate'.",
        )
    return Facts(capacity, card, tuple(found))


# A log can be long; the failure is at its end.
_LONGEST_LOG = 64 * 1024**2


def _message_text(message: str) -> str:
    """Read the message from stdin or a file, or take it as it is."""
    if message == "-":
        return sys.stdin.buffer.read(_LONGEST_LOG).decode(errors="replace")
    if "Tried to allocate" in message:
        return message
    path = Path(message)
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _LONGEST_LOG))
            return stream.read(_LONGEST_LOG).decode(errors="replace")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SnapanaError(
            "message.unreadable", f"--message {message!r}: {why}.", "Give the message's text, a file, or -."
        ) from error


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("Starting ...") as status:
        yield lambda text: status.update(f"{text} ...")


def load_job(folder: Path, known: dict[str, Any]) -> Job:
    """Read a folder of ranks.

    Raises:
        SnapanaError: ``usage.folder`` for options that go with one file only.

    """
    from snapana.analyses.job import read_job

    alone = ("at", "device", "rules", "trace")
    given = [name for name in alone if known.get(name) not in (None, ())]
    told = known.get("facts")
    given += [] if told is None or (told.card, told.limit, told.messages) == (None, None, ()) else ["card"]
    if given:
        raise SnapanaError("usage.folder", f"--{given[0]} goes with one file, not with a folder.")
    with progress() as tell:
        return read_job(
            folder,
            max_input=known["max_input"],
            step=known.get("step"),
            redactor=known.get("redactor"),
            workers=os.cpu_count() or 1,
            progress=tell,
        )


def check_new(path: Path, *, force: bool) -> None:
    """Refuse early what ``write_new`` would refuse after all the work."""
    if path.is_dir():
        raise SnapanaError("output.unwritable", f"{path} is a folder.", "Name a file in it.")
    if not path.parent.is_dir():
        raise SnapanaError("output.unwritable", f"There is no folder {path.parent}.", "Make it first, or use -o.")
    if path.exists() and not force:
        raise _exists(path)


def _exists(path: Path) -> SnapanaError:
    return SnapanaError("output.exists", f"{path} exists.", "Use --force to replace it, or -o.")


def write_new(path: Path, content: str | bytes, *, force: bool) -> None:
    """Write a file, whole or not at all; never over another one without ``force``.

    Raises:
        SnapanaError: ``output.exists``, ``output.unwritable``.

    """
    data = content.encode() if isinstance(content, str) else content
    draft = path.with_name(f".{path.name}.{os.getpid()}") if force else path
    made = False
    try:
        with draft.open("xb") as stream:
            made = True
            stream.write(data)
        if force:
            draft.replace(path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        if made:
            draft.unlink(missing_ok=True)
        raise SnapanaError("output.unwritable", f"Cannot write {path}: {error.strerror}.") from error
    click.echo(f"Wrote {path}", err=True)


def default_output(source: str, suffix: str) -> Path:
    """Derive an output's name from the input's: ``runs/a.pickle.xz`` gives ``a.html``."""
    name = "stdin" if source == "-" else Path(source).name
    for ending in (".gz", ".xz", ".zst", ".zip", ".pickle", ".pkl", ".json", ".html"):
        name = name.removesuffix(ending)
    return Path(f"{name or 'snapana'}{suffix}")


def print_json(document: dict[str, Any]) -> None:
    """Print a document on stdout, indented."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
