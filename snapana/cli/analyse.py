"""From the command line's INPUT to results, whatever INPUT is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from snapana.analyses.overview import Overview, overview
from snapana.errors import SnapanaError
from snapana.loading import load_any
from snapana.trace.model import Timeline, Trace


def analyse(input: str, *, max_input: int, progress: Callable[[str], None], **options: Any) -> Overview | Timeline:
    """Load and analyse a snapshot or a trace; a timeline is given as it is.

    Args:
        input: a path or ``-``.
        max_input: most bytes after decompression.
        progress: told what is being done.
        **options: of ``overview``.

    """
    loaded = load_any(input, max_input=max_input, progress=progress)
    if isinstance(loaded, Timeline):
        return loaded
    if isinstance(loaded, Trace):
        from snapana.analyses.traces import trace_overview

        return trace_overview(loaded, progress=progress, **options)
    return overview(loaded, progress=progress, **options)


def only_overview(found: Overview | Timeline) -> Overview:
    """Refuse a timeline where lines of code are asked for.

    Raises:
        SnapanaError: ``input.timeline``.

    """
    if isinstance(found, Timeline):
        raise SnapanaError(
            "input.timeline",
            f"{found.info.name} is an exported memory timeline: it knows categories over time, and nothing else.",
            "snapana summary and snapana report show it.",
        )
    return found
