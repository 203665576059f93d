"""Segments made and given back: what the allocator asked of the driver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from snapana.analyses.steps import Steps
from snapana.snapshot.model import ACTION_CODE, Snapshot


@dataclass(frozen=True)
class Churn:
    """Traffic between allocator and driver within the window.

    Attributes:
        segment_allocs: segments allocated or mapped.
        segment_frees: segments freed or unmapped.
        allocated_bytes: bytes of the former.
        freed_bytes: bytes of the latter.
        per_step: segments made a step, after the first step; None without steps.
        empty_cache_calls: releases outside of any allocation; None where stacks are missing to tell.
        empty_cache_stacks: stack id of each such call.

    """

    segment_allocs: int
    segment_frees: int
    allocated_bytes: int
    freed_bytes: int
    per_step: float | None
    empty_cache_calls: int | None
    empty_cache_stacks: tuple[int, ...]


def churn(snapshot: Snapshot, device: int, steps: Steps) -> Churn:
    """Count segment events; tell ``empty_cache()`` from what an allocation released itself.

    A release inside an allocation shares its captured stack with the event that follows; one by
    ``empty_cache()`` does not.
    """
    events = snapshot.events_of(device)
    action = events["action"].cat.codes.to_numpy()
    makes = (action == ACTION_CODE["segment_alloc"]) | (action == ACTION_CODE["segment_map"])
    frees = (action == ACTION_CODE["segment_free"]) | (action == ACTION_CODE["segment_unmap"])
    size = events["size"].to_numpy()
    calls, stacks = _empty_cache(events, frees)
    return Churn(
        segment_allocs=int(makes.sum()),
        segment_frees=int(frees.sum()),
        allocated_bytes=int(size[makes].sum()),
        freed_bytes=int(size[frees].sum()),
        per_step=_per_step(np.flatnonzero(makes), steps),
        empty_cache_calls=calls,
        empty_cache_stacks=stacks,
    )


def _per_step(made: np.ndarray[tuple[int], np.dtype[np.int64]], steps: Steps) -> float | None:
    if len(steps) < 2:
        return None
    first, last = int(steps.table["end_event"].iloc[0]), int(steps.table["end_event"].iloc[-1])
    return int(((made > first) & (made <= last)).sum()) / (len(steps) - 1)


def _empty_cache(
    events: pd.DataFrame, frees: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[int | None, tuple[int, ...]]:
    """Count runs of releases that one call outside of an allocation made."""
    released = np.flatnonzero(frees)
    if not len(released):
        return 0, ()
    context = events["context"].to_numpy()
    if (context[released] < 0).any():
        return None, ()
    last_of_run = np.ones(len(released), dtype=bool)
    last_of_run[:-1] = (np.diff(released) != 1) | (context[released[1:]] != context[released[:-1]])
    ends = released[last_of_run]
    following = np.full(len(ends), -1, dtype=np.int64)
    inner = ends + 1 < len(events)
    following[inner] = context[ends[inner] + 1]
    outside = ends[following != context[ends]]
    return len(outside), tuple(events["stack"].to_numpy()[outside].tolist())
