"""What filled the card at its fullest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.sites import by_site
from snapana.snapshot.model import Snapshot
from snapana.units import known


@dataclass(frozen=True)
class Peak:
    """Everything alive at one instant, by site.

    Attributes:
        event: index in the device's trace, -1 before the first.
        time_us: microseconds since the Unix epoch, None if not recorded.
        allocated: bytes of blocks in use: what ``torch.cuda.memory_allocated()`` said.
        active: bytes including blocks that wait for another stream.
        requested: bytes that the program asked for; None where only blocks were recorded.
        reserved: bytes of all segments: ``torch.cuda.memory_reserved()``; None on the CPU.
        sites: as of ``by_site``; its ``bytes`` sum to ``allocated``.

    """

    event: int
    time_us: int | None
    allocated: int
    active: int
    requested: int | None
    reserved: int | None
    sites: pd.DataFrame


def peak(snapshot: Snapshot, device: int) -> Peak:
    """Find the highest ``allocated`` of the window and what was alive then.

    It equals ``torch.cuda.max_memory_allocated()`` to the byte where the window covers the run.
    """
    return instant(snapshot, device, snapshot.replay[device].peak_event())


def instant(snapshot: Snapshot, device: int, event: int, categories: npt.NDArray[np.int64] | None = None) -> Peak:
    """Attribute what was allocated after ``event`` (-1: before the first), with categories where they are given."""
    replay = snapshot.replay[device]
    row = replay.curves.iloc[event + 1]
    return Peak(
        event=event,
        time_us=replay.time_us(event),
        allocated=int(row["allocated"]),
        active=int(row["active"]),
        requested=known(int(row["requested"])),
        reserved=known(int(row["reserved"])),
        sites=by_site(snapshot, replay.live(event), categories),
    )
