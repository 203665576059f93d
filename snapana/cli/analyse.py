"""From the command line's INPUT to results, whatever INPUT is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from snapana.analyses.categories import categorise
from snapana.analyses.failure import Facts
from snapana.analyses.overview import Overview, overview
from snapana.errors import SnapanaError
from snapana.loading import Loaded, load_any, load_trace
from snapana.redact import Redactor
from snapana.snapshot.model import Snapshot
from snapana.trace.model import Timeline, Trace


def analyse(
    input: str,
    *,
    max_input: int,
    progress: Callable[[str], None],
    trace: str | None = None,
    facts: Facts | None = None,
    redactor: Redactor | None = None,
    called: str = "",
    loaded: Loaded | None = None,
    **options: Any,
) -> Overview | Timeline:
    """Load and analyse a snapshot or a trace; a timeline is given as it is.

    Args:
        input: a path or ``-``.
        max_input: most bytes after decompression.
        progress: told what is being done.
        trace: path of a trace of the same run, to be joined with a snapshot.
        facts: what is known besides; a trace knows the card's size.
        redactor: replaces names in what was read, before anything looks at it.
        called: name of a redacted file.
        loaded: what INPUT holds, where it was read already.
        **options: of ``overview``.

    Raises:
        SnapanaError: ``usage.trace`` where INPUT is no snapshot that a trace could be joined with.

    """
    if loaded is None:
        loaded = load_any(input, max_input=max_input, progress=progress)
    beside = None if trace is None else load_trace(trace, max_input=max_input, progress=progress)
    if redactor is not None:
        # All that is known of names comes before the first of them is replaced.
        if beside is not None:
            redactor.learn_from(beside)
        if isinstance(loaded, Snapshot) and options.get("rules"):
            # Rules name what stands in the file.
            options["codes"] = {device: categorise(loaded, device, options["rules"]) for device in loaded.devices}
        if options.get("step"):
            options["step"] = redactor.annotation(options["step"])
        loaded = redactor.model(loaded, called)
        beside = None if beside is None else redactor.model(beside)
    if beside is not None and not isinstance(loaded, Snapshot):
        raise SnapanaError("usage.trace", "--trace goes with a memory snapshot.", "Give the snapshot as INPUT.")
    if isinstance(loaded, Timeline):
        return loaded
    known = facts or Facts()
    if isinstance(loaded, Trace):
        from snapana.analyses.traces import trace_overview

        return _marked(trace_overview(loaded, facts=known, progress=progress, **options), redactor)
    if beside is None:
        return _marked(overview(loaded, facts=known, progress=progress, **options), redactor)
    from snapana.analyses.traces import with_trace

    if known.card is None:
        card = next((one.total_memory for one in beside.devices if one.device == loaded.devices[0]), None)
        known = replace(known, card=card)
    whole = with_trace(overview(loaded, facts=known, progress=progress, **options), beside, progress)
    return _marked(whole, redactor)


def _marked(results: Overview, redactor: Redactor | None) -> Overview:
    """Let results say how much of them was replaced."""
    return results if redactor is None else replace(results, redacted=redactor.counts)


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
