"""Offline analyzer of PyTorch GPU memory snapshots.

>>> import snapana
>>> snapshot = snapana.load("sample_traces/train_truncated.pickle.xz")
>>> snapshot.replay[0].peak_event()
-1
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from snapana._version import __version__
from snapana.errors import SnapanaError

if TYPE_CHECKING:
    from snapana.analyses.overview import Overview, overview
    from snapana.analyses.plan import Plan, plan
    from snapana.analyses.traces import trace_overview
    from snapana.analyses.whatif import WhatIf, what_if
    from snapana.findings import Finding, judge
    from snapana.recording.recorder import record
    from snapana.snapshot.model import Snapshot
    from snapana.trace.model import Trace

# Imported on first use: pandas alone takes longer than `snapana --help` may.
_LAZY = {
    "Finding": "snapana.findings",
    "Overview": "snapana.analyses.overview",
    "Plan": "snapana.analyses.plan",
    "Snapshot": "snapana.snapshot.model",
    "Trace": "snapana.trace.model",
    "WhatIf": "snapana.analyses.whatif",
    "trace_overview": "snapana.analyses.traces",
    "judge": "snapana.findings",
    "overview": "snapana.analyses.overview",
    "plan": "snapana.analyses.plan",
    "record": "snapana.recording.recorder",
    "what_if": "snapana.analyses.whatif",
}

__all__ = [
    "Finding",
    "Overview",
    "Plan",
    "SnapanaError",
    "Snapshot",
    "Trace",
    "WhatIf",
    "__version__",
    "judge",
    "load",
    "load_trace",
    "overview",
    "plan",
    "record",
    "trace_overview",
    "what_if",
]


def load(path: str | os.PathLike[str], *, max_input: int | None = None) -> Snapshot:
    """Read a memory snapshot: a pickle, possibly compressed, a memory-viz HTML page, or JSON.

    Args:
        path: file, or ``"-"`` for standard input.
        max_input: refuse more than so many bytes after decompression; 16 GiB by default.

    Raises:
        SnapanaError: the file cannot be read, or is no snapshot; ``code`` says which.

    """
    from snapana.loading import load_snapshot

    return load_snapshot(path, max_input=max_input)


def load_trace(path: str | os.PathLike[str], *, max_input: int | None = None) -> Trace:
    """Read a Chrome trace of torch.profiler, possibly compressed; damaged ones are mended where that is possible.

    Args:
        path: file, or ``"-"`` for standard input.
        max_input: refuse more than so many bytes after decompression; 16 GiB by default.

    Raises:
        SnapanaError: the file cannot be read, or is no trace; ``code`` says which.

    """
    from snapana.loading import load_trace as load

    return load(path, max_input=max_input)


def __getattr__(name: str) -> Any:
    """Import the public names on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'snapana' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
