"""From a path to the model."""

from __future__ import annotations

import os
from collections.abc import Callable

from snapana.errors import SnapanaError
from snapana.plain import plain_text
from snapana.snapshot.model import InputInfo, Snapshot
from snapana.snapshot.normalise import normalise
from snapana.sources import Source, open_source, read_snapshot_document


def load_snapshot(
    path: str | os.PathLike[str],
    *,
    max_input: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Snapshot:
    """Read a snapshot of any generation: see ``snapana.load``."""
    progress("Reading")
    source = open_source(path) if max_input is None else open_source(path, max_input=max_input)
    if source.kind != "snapshot":
        raise SnapanaError(
            "input.not_a_snapshot",
            f"{source.name} is a profiler {source.kind}; this version reads memory snapshots.",
            "Record one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(path).",
        )
    return _decode(source, progress)


def _decode(source: Source, progress: Callable[[str], None]) -> Snapshot:
    progress("Decoding")
    info = InputInfo(plain_text(source.name), source.kind, source.sha256, source.size_bytes)
    document = read_snapshot_document(source)
    progress("Building the model")
    return normalise(document, info)
