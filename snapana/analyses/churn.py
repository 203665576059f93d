"""Segments made and given back: what the allocator asked of the driver, when, and because of whom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.sites import site_codes, site_list
from snapana.analyses.steps import Steps
from snapana.snapshot.model import ACTION_CODE, Snapshot

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_MAKES = (ACTION_CODE["segment_alloc"], ACTION_CODE["segment_map"])
_FREES = (ACTION_CODE["segment_free"], ACTION_CODE["segment_unmap"])


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
        releases: allocations that succeeded after cached segments had been released for them; None likewise.
        released_bytes: what was released for them.
        retries: those of them that had failed first (``num_alloc_retries``, less the fatal ones); None also with
            ``garbage_collection_threshold`` or ``max_split_size``, which release without a failure.
        steps: one row per step: ``index``, ``name``, ``allocs``, ``frees``, ``allocated_bytes``, ``freed_bytes``.
        triggers: who made the allocator ask the driver, by site, most bytes first: ``site``, ``allocs``, ``bytes``.
        emptied: calls of ``empty_cache()`` that released something, by line: ``site``, ``calls``, ``segments``,
            ``bytes``, ``per_step`` (calls a step, NaN without steps), ``named`` (whether the stack says
            ``empty_cache``; a library may call it from C++).

    """

    segment_allocs: int
    segment_frees: int
    allocated_bytes: int
    freed_bytes: int
    per_step: float | None
    empty_cache_calls: int | None
    releases: int | None
    released_bytes: int | None
    retries: int | None
    steps: pd.DataFrame
    triggers: pd.DataFrame
    emptied: pd.DataFrame


def churn(snapshot: Snapshot, device: int, steps: Steps) -> Churn:
    """Count segment events; tell ``empty_cache()`` from what an allocation released itself.

    A release inside an allocation shares its captured stack with the event that follows; one by
    ``empty_cache()`` does not.
    """
    events = snapshot.replay[device].events
    action = events["action"].cat.codes.to_numpy()
    makes, frees = np.isin(action, _MAKES), np.isin(action, _FREES)
    size = events["size"].to_numpy()
    runs = _release_runs(events, frees)
    eager = snapshot.settings.garbage_collection_threshold > 0 or snapshot.settings.max_split_size is not None
    inside = runs[runs["inside"] & runs["served"]] if runs is not None else None
    return Churn(
        segment_allocs=int(makes.sum()),
        segment_frees=int(frees.sum()),
        allocated_bytes=int(size[makes].sum()),
        freed_bytes=int(size[frees].sum()),
        per_step=_per_step(np.flatnonzero(makes), steps),
        empty_cache_calls=None if runs is None else int((~runs["inside"]).sum()),
        releases=None if inside is None else len(inside),
        released_bytes=None if inside is None else int(inside["bytes"].sum()),
        retries=None if inside is None or eager else len(inside),
        steps=_by_step(steps, makes, frees, size),
        triggers=_triggers(snapshot, events[makes]),
        emptied=_emptied(snapshot, steps, runs),
    )


def empty_cache_calls(snapshot: Snapshot, device: int) -> IntArray:
    """Give the first release of each ``empty_cache()`` that released anything; none where that cannot be told."""
    events = snapshot.replay[device].events
    runs = _release_runs(events, np.isin(events["action"].cat.codes.to_numpy(), _FREES))
    if runs is None:
        return np.zeros(0, dtype=np.int64)
    outside = runs[~runs["inside"]]
    found: IntArray = (outside["end"] - outside["segments"] + 1).to_numpy(dtype=np.int64)
    return found


def _per_step(made: IntArray, steps: Steps) -> float | None:
    if len(steps) < 2:
        return None
    first, last = int(steps.table["end_event"].iloc[0]), int(steps.table["end_event"].iloc[-1])
    return int(((made > first) & (made <= last)).sum()) / (len(steps) - 1)


def _by_step(steps: Steps, makes: BoolArray, frees: BoolArray, size: IntArray) -> pd.DataFrame:
    table = steps.table[["index", "name"]].copy()
    low = steps.table["start_event"].to_numpy(dtype=np.int64)
    high = steps.table["end_event"].to_numpy(dtype=np.int64) + 1
    weights = {"allocs": makes, "frees": frees, "allocated_bytes": size * makes, "freed_bytes": size * frees}
    for name, weight in weights.items():
        sums = np.concatenate([[0], np.cumsum(weight, dtype=np.int64)])
        table[name] = sums[high] - sums[low]
    return table


def _triggers(snapshot: Snapshot, made: pd.DataFrame) -> pd.DataFrame:
    """Sum what was made by the site that asked for it."""
    names = [site.label for site in site_list(snapshot)]
    codes = site_codes(snapshot, pd.DataFrame({"stack": made["stack"].to_numpy(), "alloc": 0}))
    table = pd.DataFrame({"code": codes, "bytes": made["size"].to_numpy()})
    sums = table.groupby("code", as_index=False).agg(allocs=("bytes", "count"), bytes=("bytes", "sum"))
    sums["site"] = [names[code] for code in sums["code"]]
    sums = sums.sort_values(["bytes", "site"], ascending=[False, True], kind="stable", ignore_index=True)
    return sums[["site", "allocs", "bytes"]]


def _release_runs(events: pd.DataFrame, frees: BoolArray) -> pd.DataFrame | None:
    """Group releases by the call that made them; None where stacks are missing to tell.

    Returns:
        ``end`` (event of the last release), ``segments``, ``bytes``, ``stack``, ``inside`` (an allocation made
        it) and ``served`` (that allocation succeeded).

    """
    released = np.flatnonzero(frees)
    context = events["context"].to_numpy()
    if (context[released] < 0).any():
        return None
    last = np.ones(len(released), dtype=bool)
    last[:-1] = (np.diff(released) != 1) | (context[released[1:]] != context[released[:-1]])
    run = np.cumsum(last) - last
    ends = released[last]
    following = np.minimum(ends + 1, len(events) - 1)
    inside = (ends + 1 < len(events)) & (context[following] == context[ends])
    failed = events["action"].cat.codes.to_numpy()[following] == ACTION_CODE["oom"]
    size = events["size"].to_numpy()[released]
    return pd.DataFrame(
        {
            "end": ends,
            "segments": np.bincount(run, minlength=len(ends)),
            "bytes": np.bincount(run, weights=size, minlength=len(ends)).astype(np.int64),
            "stack": events["stack"].to_numpy()[ends],
            "inside": inside,
            "served": inside & ~failed,
        }
    )


def _emptied(snapshot: Snapshot, steps: Steps, runs: pd.DataFrame | None) -> pd.DataFrame:
    """Count the releases outside of allocations by the line that called for them."""
    columns = ["site", "named", "calls", "segments", "bytes", "per_step"]
    if runs is None or runs["inside"].all():
        return pd.DataFrame(columns=columns)
    outside = runs[~runs["inside"]]
    table = pd.DataFrame(
        {
            "site": [snapshot.stacks.site(stack).label for stack in outside["stack"]],
            "named": [_calls_empty_cache(snapshot, stack) for stack in outside["stack"]],
            "segments": outside["segments"].to_numpy(),
            "bytes": outside["bytes"].to_numpy(),
        }
    )
    sums = table.groupby(["site", "named"], as_index=False).agg(
        calls=("bytes", "count"), segments=("segments", "sum"), bytes=("bytes", "sum")
    )
    sums["per_step"] = sums["calls"] / len(steps) if len(steps) else np.nan
    return sums.sort_values("calls", ascending=False, kind="stable", ignore_index=True)[columns]


def _calls_empty_cache(snapshot: Snapshot, stack: int) -> bool:
    frames = (frame for frame in snapshot.stacks.frames_of(stack) if frame[3] not in {"cpp", "unwinder"})
    return next((frame[0] == "empty_cache" for frame in frames), False)
