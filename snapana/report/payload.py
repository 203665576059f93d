"""What the interactive part of a page works with: every block of the window, as compressed columns."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.overview import DeviceOverview
from snapana.analyses.rules import CATEGORIES
from snapana.analyses.sites import site_codes, site_list
from snapana.frames import rows
from snapana.report.templates import template_folder
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]

# Longer recordings have no explorer: a browser would take too long to begin.
MOST_LIVES = 2_000_000
_MOST_FRAMES = 40
_MOST_STEPS = 5_000
_MOST_MARKS = 200
_MOST_ANNOTATIONS = 2_000


@dataclass(frozen=True)
class Script:
    """The page's only script.

    Attributes:
        text: as it stands in the page.
        digest: of the text, as a Content-Security-Policy names it.

    """

    text: str
    digest: str


@cache
def script() -> Script:
    """Read the script, and compute what allows it and nothing else to run."""
    text = (template_folder() / "assets" / "explore.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(text, f"sha256-{digest}")


def payload(snapshot: Snapshot, device: DeviceOverview) -> str | None:
    """Pack a device's blocks for the page.

    Returns:
        Base64 of a zlib stream: four bytes of length, JSON of that length, zero bytes up to a multiple of four, then
        columns of 32 bits each, in the order of ``_COLUMNS``; None where there are no events, or too many blocks.

    """
    replay = snapshot.replay[device.device]
    lives = replay.allocations
    if not device.coverage.events or not 0 < len(lives) <= MOST_LIVES:
        return None
    born = lives["alloc"].to_numpy()
    order = np.argsort(born, kind="stable")
    freed = lives["free_requested"].to_numpy()
    never = len(replay.events)
    sizes, size = np.unique(lives["size"].to_numpy(), return_inverse=True)
    addresses, address = np.unique(lives["addr"].to_numpy(), return_inverse=True)
    stack = lives["stack"].to_numpy().copy()
    # Lives from before the window without a stack have a site of their own.
    codes = site_codes(snapshot, lives)
    columns = {
        "born": np.diff(born[order], prepend=-1),
        "lasts": np.where(freed < 0, 0, np.maximum(freed - born, 1))[order],
        "size": size[order],
        "address": address[order],
        "site": codes[order],
        "stack": stack[order],
        "category": device.codes[order],
        "stream": np.unique(lives["stream"].to_numpy(), return_inverse=True)[1][order],
        "pool": lives["pool"].to_numpy()[order],
        "freed_by": _stack_of_free(replay.events["stack"].to_numpy(), freed)[order],
        "waits": np.where(freed >= 0, _waits(freed, lives["free_completed"].to_numpy(), never), 0)[order],
    }
    data = b"".join(np.ascontiguousarray(columns[name], dtype="<i4").tobytes() for name in _COLUMNS)
    head = json.dumps(
        _head(snapshot, device, never, len(lives), sizes, addresses), separators=(",", ":"), ensure_ascii=True
    ).encode()
    padding = b"\0" * (-len(head) % 4)
    packed = zlib.compress(len(head).to_bytes(4, "little") + head + padding + data, 9)
    return base64.b64encode(packed).decode()


_COLUMNS = ("born", "lasts", "size", "address", "site", "stack", "category", "stream", "pool", "freed_by", "waits")


def _stack_of_free(stacks: IntArray, freed: IntArray) -> IntArray:
    """Give the stack that freed each block, -1 where none is known."""
    return np.where(freed >= 0, np.append(stacks, -1)[np.maximum(freed, 0)], -1)


def _waits(freed: IntArray, done: IntArray, never: int) -> IntArray:
    """Give for how many events each freed block waited for another stream; one is at once."""
    waits: IntArray = np.where(done < 0, never, done) - freed
    return np.maximum(waits, 1)


def _segments(segments: pd.DataFrame, events: int) -> list[list[int]]:
    """Give each segment's address, size, first and last event, pool, whether it is small, and stream."""
    died = segments["died"].to_numpy()
    columns = [segments[name].tolist() for name in ("address", "size", "born")]
    columns += [np.where(died >= 0, died, events).tolist(), segments["pool"].tolist()]
    columns += [segments["small"].astype(int).tolist(), segments["stream"].tolist()]
    return [list(row) for row in zip(*columns, strict=True)]


def _annotations(snapshot: Snapshot, device: DeviceOverview) -> list[list[Any]]:
    """Give the ranges of annotations as events: name, first and last; marks of steps are elsewhere."""
    times = snapshot.replay[device.device].events["time_us"].to_numpy()
    marks = snapshot.annotations
    if not len(times) or int(times[0]) < 0:
        return []
    marks = marks[(marks["start_us"] >= 0) & (marks["end_us"] >= times[0]) & (marks["start_us"] <= times[-1])]
    marks = marks[~marks["name"].str.match(r"ProfilerStep#|Optimizer\.")].head(_MOST_ANNOTATIONS)
    first = np.searchsorted(times, marks["start_us"].to_numpy(), side="left")
    last = np.searchsorted(times, marks["end_us"].to_numpy(), side="right") - 1
    return [list(row) for row in zip(marks["name"].tolist(), first.tolist(), last.tolist(), strict=True)]


def _frame(row: Any) -> list[Any]:
    """Give a frame's text, and whether it belongs to a library."""
    text = f"{row.filename}:{row.line} {row.name}" if row.filename not in {"", "??"} else row.name
    return [text, int(row.kind not in {"user", "generated"})]


def _head(
    snapshot: Snapshot, device: DeviceOverview, events: int, lives: int, sizes: IntArray, addresses: Any
) -> dict[str, Any]:
    replay = snapshot.replay[device.device]
    # Of the CPU no one tells what is reserved.
    reserved = np.maximum(replay.curves["reserved"].to_numpy(), 0)
    changes = np.flatnonzero(np.diff(reserved, prepend=reserved[0] - 1))
    steps = device.steps.table
    marks = [(device.peak.event, "peak", 0)]
    marks += [(oom.event, "out of memory", 1) for oom in device.oom[-_MOST_MARKS:]]
    times = replay.events["time_us"].to_numpy()
    known = len(times) > 0 and int(times[0]) >= 0
    shown = np.unique(np.linspace(0, len(times) - 1, min(len(times), 2_000)).astype(np.int64))
    return {
        "device": device.device,
        "events": events,
        "lives": lives,
        "columns": list(_COLUMNS),
        "sizes": sizes.tolist(),
        "addresses": addresses.tolist(),
        "sites": [site.label for site in site_list(snapshot)],
        "categories": list(CATEGORIES),
        "pools": ["default pool", *(f"pool {pool[0]}, {pool[1]}" for pool in snapshot.pools[1:])],
        "annotations": _annotations(snapshot, device),
        "streams": np.unique(replay.allocations["stream"].to_numpy()).tolist(),
        "frames": [_frame(row) for row in rows(snapshot.stacks.frames)],
        "stacks": [list(stack[:_MOST_FRAMES]) for stack in snapshot.stacks.stacks],
        "steps": [
            [str(name), int(end)] for name, end in zip(steps["name"].tolist(), steps["end_event"].tolist(), strict=True)
        ][:_MOST_STEPS],
        "marks": marks,
        # Event after which so much was reserved; the first stands for the state before event 0.
        "reserved": [(changes - 1).tolist(), reserved[changes].tolist()],
        "segments": [] if device.space is None else _segments(replay.segments, events),
        "times": [] if not known else [list(map(int, shown)), ((times[shown] - times[0]) / 1e3).round(3).tolist()],
        "peak": device.peak.event,
        "end": events - 1,
        "oom": device.oom[-1].event if device.oom else None,
    }
