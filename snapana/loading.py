"""From a path to the model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from snapana.errors import SnapanaError
from snapana.plain import plain_text
from snapana.snapshot.model import InputInfo, Snapshot
from snapana.snapshot.sidecar import read_sidecar
from snapana.sources import Source, open_source, read_snapshot_document
from snapana.trace.model import Timeline, Trace

Loaded = Snapshot | Trace | Timeline


def load_any(
    path: str | os.PathLike[str],
    *,
    max_input: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Loaded:
    """Read a snapshot, a profiler trace, or an exported memory timeline: what it is, is found from its content.

    Raises:
        SnapanaError: the file cannot be read, or is none of them.

    """
    progress("Reading")
    source = open_source(path) if max_input is None else open_source(path, max_input=max_input)
    progress("Decoding")
    info = InputInfo(plain_text(source.name), source.kind, None, source.size_bytes)
    found: Loaded
    if source.kind == "trace":
        from snapana.trace.read import read_trace

        found = read_trace(source.payload, info, progress)
    elif source.kind == "timeline":
        from snapana.trace.timeline import read_timeline

        found = read_timeline(source.payload, info)
    else:
        found = _snapshot(source, info, progress)
        if source.path is not None:
            found = replace(found, sidecar=read_sidecar(source.path))
    return replace(found, info=replace(info, sha256=source.digest()))


def load_snapshot(
    path: str | os.PathLike[str],
    *,
    max_input: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Snapshot:
    """Read a snapshot of any generation: see ``snapana.load``."""
    found = load_any(path, max_input=max_input, progress=progress)
    if not isinstance(found, Snapshot):
        raise SnapanaError(
            "input.not_a_snapshot",
            f"{found.info.name} is a profiler {found.info.kind}; a memory snapshot is needed here.",
            "Record one with torch.cuda.memory._record_memory_history() and torch.cuda.memory._dump_snapshot(path).",
        )
    return found


def load_trace(
    path: str | os.PathLike[str],
    *,
    max_input: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Trace:
    """Read a Chrome trace of torch.profiler: see ``snapana.load_trace``."""
    found = load_any(path, max_input=max_input, progress=progress)
    if not isinstance(found, Trace):
        raise SnapanaError(
            "input.not_a_trace",
            f"{found.info.name} is a memory {found.info.kind}; a profiler trace is needed here.",
            "Record one with torch.profiler.profile(profile_memory=True) and export_chrome_trace(path).",
        )
    return found


def _snapshot(source: Source, info: InputInfo, progress: Callable[[str], None]) -> Snapshot:
    from snapana.snapshot.normalise import normalise

    document = read_snapshot_document(source)
    progress("Building the model")
    return normalise(document, info)
