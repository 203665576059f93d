"""The command line. Commands are imported when they run, so that ``--help`` stays quick."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from snapana._version import __version__
from snapana.errors import SnapanaError

# Command to its module, and its line of help: kept here so that the group's help imports none of them.
_COMMANDS = {
    "report": ("snapana.cli.report", "Write one self-contained HTML file, to attach to a bug ticket."),
    "summary": ("snapana.cli.summary", "Print everything in short: text, JSON or Markdown."),
    "peak": ("snapana.cli.parts", "What was allocated at the peak, by line of code."),
    "fragmentation": ("snapana.cli.parts", "What was reserved but not used, and which blocks keep it."),
    "leaks": ("snapana.cli.parts", "Lines whose memory grows with every step."),
    "oom": ("snapana.cli.parts", "Why an allocation failed."),
    "compare": ("snapana.cli.compare", "What differs between two runs, by line of code, and why."),
    "check": ("snapana.cli.check", "Hold a run against limits or an earlier run, for CI."),
    "howto": ("snapana.cli.howto", "Print code to paste that records what snapana reads."),
    "record": ("snapana.cli.record", "Run a training script and record it, without touching it."),
    "convert": ("snapana.cli.convert", "Write a snapshot as a plain pickle, redacted if asked."),
    "whatif": ("snapana.cli.whatif", "What other allocator settings would have done."),
    "plan": ("snapana.cli.plan", "What other batch sizes would need, and the largest that fits."),
}


class _LazyGroup(click.Group):
    """A group that knows its commands' names, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(_COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="snapana")
def cli() -> None:
    """Say what filled a GPU's memory, from a PyTorch memory snapshot.

    \b
    Example:
      snapana report profil_vram.pickle
    """


def main(args: list[str] | None = None) -> int:
    """Run a command; give the exit code: 0 fine, 1 a check failed, 2 usage or unreadable input."""
    args = sys.argv[1:] if args is None else args
    if not args:
        click.echo(cli.get_help(click.Context(cli, info_name="snapana")))
        return 2
    try:
        result = cli.main(args=args, prog_name="snapana", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except SnapanaError as error:
        return _fail(error, args)
    except click.UsageError as error:
        where = f" See '{error.ctx.command_path} --help'." if error.ctx else ""
        return _fail(SnapanaError("usage", error.format_message(), where), args)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        click.echo("Interrupted.", err=True)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 0
    except MemoryError:
        return _fail(SnapanaError("input.too_large", "Not enough memory for this input."), args)
    except OSError as error:
        _drop_output()
        return _fail(SnapanaError("output.unwritable", f"Cannot write the output: {error.strerror or error}."), [])
    return result if isinstance(result, int) else 0


def _drop_output() -> None:
    """Send what is still buffered nowhere: its reader went away, as `| head` does, or the disk is full."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        # Not a real file, as in tests: nothing is left to fail.
        return


def _fail(error: SnapanaError, args: list[str]) -> int:
    if "--json" in args:
        import msgspec

        click.echo(msgspec.json.encode({"error": error.to_dict()}).decode())
    click.echo(f"snapana: {error}", err=True)
    return 2
