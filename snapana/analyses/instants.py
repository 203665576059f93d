"""Named instants of a recording: where to look."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snapana.errors import SnapanaError
from snapana.snapshot.model import ACTION_CODE, Snapshot

NAMES = ("peak", "peak_reserved", "oom", "optimizer", "end")


@dataclass(frozen=True)
class Instant:
    """One instant of one device.

    Attributes:
        name: as it was asked for.
        event: the state after this event is meant; -1 before the first.

    """

    name: str
    event: int


def find_instant(snapshot: Snapshot, device: int, name: str) -> Instant:
    """Find an instant by name or event number.

    Args:
        snapshot: the file.
        device: ordinal.
        name: ``peak`` (most allocated), ``peak_reserved``, ``oom`` (the last failed allocation), ``optimizer`` (the
            end of the last ``Optimizer.step``), ``end``, or the index of an event of the device, -1 before the first.

    Raises:
        SnapanaError: ``usage.at`` where the recording has no such instant.

    """
    replay = snapshot.replay[device]
    last = len(replay.events) - 1
    if name == "peak":
        return Instant(name, replay.peak_event())
    if name == "peak_reserved":
        return Instant(name, replay.peak_event("reserved"))
    if name == "end":
        return Instant(name, last)
    if name == "oom":
        failed = np.flatnonzero(replay.events["action"].cat.codes.to_numpy() == ACTION_CODE["oom"])
        if not len(failed):
            raise _missing(snapshot, device, "no allocation failed in its window", "Use --at peak.")
        return Instant(name, int(failed[-1]))
    if name == "optimizer":
        return Instant(name, _optimizer(snapshot, device))
    try:
        event = int(name)
    except ValueError:
        known = ", ".join(NAMES)
        raise SnapanaError("usage.at", f"{name!r} is no instant.", f"Use {known}, or the index of an event.") from None
    if not -1 <= event <= last:
        raise _missing(snapshot, device, f"its events are 0 to {last:,}", "-1 is the state before the first.")
    return Instant(name, event)


def _optimizer(snapshot: Snapshot, device: int) -> int:
    """Give the last event within the last optimizer step."""
    times = snapshot.replay[device].events["time_us"].to_numpy()
    marks = snapshot.annotations
    ends = marks["end_us"][marks["name"].str.startswith("Optimizer.step#")].to_numpy()
    if len(times) and int(times[0]) >= 0:
        ends = ends[ends >= int(times[0])]
        if len(ends):
            return int(np.searchsorted(times, int(ends.max()), side="right")) - 1
    raise _missing(
        snapshot,
        device,
        "it holds no end of an Optimizer.step",
        "PyTorch marks optimizer.step() where history is recorded (2.5 and later).",
    )


def _missing(snapshot: Snapshot, device: int, why: str, hint: str) -> SnapanaError:
    return SnapanaError("usage.at", f"{snapshot.info.name}, device {device}: {why}.", hint)
