"""What is asked of the allocator: under which limit, and with changes as experts make them by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from snapana.analyses.failure import Facts, all_facts
from snapana.analyses.oom import out_of_memory
from snapana.analyses.steps import steps
from snapana.analyses.whatif import Workload, limit_of, with_empty_cache, with_preallocation
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot


def changed(
    snapshot: Snapshot, device: int, empty_cache_at: str | None, preallocate: int | None
) -> Callable[[Workload], Workload] | None:
    """Give what changes the requests of a device as it was asked; None for nothing.

    Args:
        snapshot: the file.
        device: ordinal.
        empty_cache_at: an event, ``each-step``, or the name of an annotation; None for no more calls.
        preallocate: bytes of a block that is taken and freed first.

    Raises:
        SnapanaError: ``usage.at``, ``usage.step``.

    """
    if empty_cache_at is None and not preallocate:
        return None
    events = [] if empty_cache_at is None else _events(snapshot, device, empty_cache_at)

    def change(work: Workload) -> Workload:
        work = with_empty_cache(work, events) if events else work
        return with_preallocation(work, preallocate) if preallocate else work

    return change


def known_limit(snapshot: Snapshot, device: int, facts: Facts) -> int | None:
    """Give the most that may be reserved: as told, else that of the last recorded failure."""
    limit = all_facts(snapshot, facts).limit_of(device)
    if limit is not None:
        return limit
    failures = out_of_memory(snapshot, device, facts, explained=0)
    return limit_of(snapshot, failures[-1]) if failures else None


def turning_point(snapshot: Snapshot, device: int, at: str) -> int:
    """Give an event: the one that is named, or the first of the first range of an annotation.

    Raises:
        SnapanaError: ``usage.at``, ``usage.step``.

    """
    if at.lstrip("-").isdigit():
        return _events(snapshot, device, at)[0]
    found = steps(snapshot, device, at)
    if not len(found):
        raise SnapanaError(
            "usage.step", f"No range of {at!r} lies in the window.", "Name an event, or another annotation."
        )
    return int(found.table["start_event"].iloc[0])


def limit_is_guess(snapshot: Snapshot, device: int, facts: Facts) -> bool:
    """Whether ``known_limit`` is only the least that the limit may have been."""
    if all_facts(snapshot, facts).limit_of(device) is not None:
        return False
    failures = out_of_memory(snapshot, device, facts, explained=0)
    return bool(failures) and failures[-1].limit is None and failures[-1].limit_low is not None


def _events(snapshot: Snapshot, device: int, at: str) -> list[int]:
    count = len(snapshot.replay[device].events)
    if at.lstrip("-").isdigit():
        event = int(at)
        if not 0 <= event < count:
            raise SnapanaError("usage.at", f"There is no event {event}.", f"The window has {count:,} events.")
        return [event]
    found = steps(snapshot, device, None if at == "each-step" else at)
    if not len(found):
        raise SnapanaError("usage.step", "No steps are known.", "Name an annotation, or an event.")
    ends: list[int] = np.asarray(found.table["end_event"]).tolist()
    return ends
