"""``snapana convert``."""

from __future__ import annotations

import gzip
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path

import click

from snapana.cli.common import SizeType, check_new, progress, redact_options, redactor_of, tell_redacted, write_new
from snapana.errors import SnapanaError


@click.command()
@click.argument("input", metavar="INPUT")
@click.argument("output", metavar="OUTPUT")
@redact_options
@click.option("--force", is_flag=True, help="Replace OUTPUT if it exists.")
@click.option("--max-input", type=SizeType(), default="16GiB", help="Refuse more than this, decompressed.")
def convert(input: str, output: str, redact: bool, redact_list: str | None, force: bool, max_input: int) -> None:
    """Write INPUT, any memory snapshot, as a plain pickle that PyTorch's own viewer opens.

    OUTPUT ends in .pickle, or in .pickle.xz or .pickle.gz to be packed. With --redact names of users and hosts, folders
    and texts are replaced; every figure, and each function's name, stays.

    \b
    Examples:
      snapana convert profil_vram.pickle public.pickle --redact
      snapana convert memory_viz.html again.pickle.xz
    """
    from snapana.snapshot.model import InputInfo
    from snapana.snapshot.normalise import normalise
    from snapana.sources import open_source, read_snapshot_document

    target = Path(output)
    packers: dict[str, Callable[[bytes], bytes]] = {
        ".pickle": bytes,
        ".pkl": bytes,
        ".xz": lzma.compress,
        ".gz": gzip.compress,
    }
    pack = packers.get(target.suffix)
    if pack is None:
        raise SnapanaError("usage.output", f"{output} is no name for a snapshot.", "End it in .pickle or .pickle.xz.")
    check_new(target, force=force)
    redactor = redactor_of(redact, redact_list)
    with progress() as tell:
        tell("Reading")
        source = open_source(input, max_input=max_input)
        if source.kind != "snapshot":
            raise SnapanaError(
                "input.not_a_snapshot", f"{source.name} is a {source.kind}; only memory snapshots are converted."
            )
        document = read_snapshot_document(source)
        tell("Checking")
        normalise(document, InputInfo(source.name, source.kind))
        try:
            if redactor is not None:
                tell("Redacting")
                document = redactor.document(document)
            tell("Writing")
            # Protocol 4 is what torch.cuda.memory._dump_snapshot writes.
            data = pack(pickle.dumps(document, protocol=4))
        except RecursionError:
            raise SnapanaError("input.too_large", f"{source.name} is nested too deeply to be written again.") from None
    tell_redacted(redactor, redact_list)
    write_new(target, data, force=force)
