"""The address space of one device at one instant: segments, blocks and the holes between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.rounding import LARGE_SEGMENT, SMALL_BUFFER

IntArray = npt.NDArray[np.int64]

ALLOCATED, PENDING, FREE = 0, 1, 2
STATES = ("allocated", "pending", "free")


@dataclass(frozen=True)
class Layout:
    """Every segment tiled by its blocks and holes, sorted by address.

    Attributes:
        event: after which event; -1 before the first.
        segments: one row per segment; for expandable segments per contiguous mapped range: ``address``,
            ``size``, ``stream``, ``pool``, ``small``, ``expandable``, ``page`` (bytes that can be given back
            separately; the whole segment unless expandable).
        ranges: one row per block or hole: ``segment`` (row of ``segments``), ``address``, ``size``,
            ``state`` (0 allocated, 1 pending, 2 free), ``life`` (row of the allocations, -1 for a hole),
            ``requested`` (0 for a hole).
        overlaps: blocks that do not fit where they should lie; 0 for a sound file.

    """

    event: int
    segments: pd.DataFrame
    ranges: pd.DataFrame
    overlaps: int = 0

    @property
    def holes(self) -> pd.DataFrame:
        """The free ranges."""
        return self.ranges[self.ranges["state"] == FREE]

    @property
    def blocks(self) -> pd.DataFrame:
        """The allocated and pending blocks."""
        return self.ranges[self.ranges["state"] != FREE]

    @property
    def whole_free(self) -> npt.NDArray[np.bool_]:
        """Mark the segments without any block."""
        free = np.ones(len(self.segments), dtype=bool)
        free[self.blocks["segment"].to_numpy()] = False
        return free

    def owned(self, *, small: bool, stream: int, pool: int) -> npt.NDArray[np.bool_]:
        """Mark the segments whose free parts a request of a size class, stream and pool may use."""
        table = self.segments
        own: npt.NDArray[np.bool_] = (
            (table["small"] == small) & (table["stream"] == stream) & (table["pool"] == pool)
        ).to_numpy()
        return own


def build_layout(segments: pd.DataFrame, allocations: pd.DataFrame, event: int) -> Layout:
    """Lay out what was mapped and alive after ``event``.

    Args:
        segments: segment lives, as ``DeviceReplay.segments``.
        allocations: block lives, as ``DeviceReplay.allocations``.
        event: index in the device's trace; -1 for the state before it.

    """
    mapped = _merge_pieces(segments[_alive(segments["born"], segments["died"], event)])
    life = np.flatnonzero(_alive(allocations["alloc"], allocations["free_completed"], event))
    addr = allocations["addr"].to_numpy()[life]
    order = np.argsort(addr, kind="stable")
    life, addr = life[order], addr[order]
    owner = np.searchsorted(mapped["address"].to_numpy(), addr, side="right").astype(np.int64) - 1
    size = allocations["size"].to_numpy()[life]
    ends = mapped["address"].to_numpy() + mapped["size"].to_numpy().astype(np.uint64)
    inside = owner >= 0
    inside[inside] = addr[inside] < ends[owner[inside]]
    lost = int((~inside).sum())
    life, addr, owner, size = life[inside], addr[inside], owner[inside], size[inside]
    asked = allocations["free_requested"].to_numpy()[life]
    waiting = (asked != -1) & (asked <= event)
    blocks = pd.DataFrame(
        {
            "segment": owner,
            "address": addr,
            "size": size,
            "state": np.where(waiting, PENDING, ALLOCATED).astype(np.int8),
            "life": life,
            "requested": allocations["requested"].to_numpy()[life],
        }
    )
    holes, overlaps = _holes(mapped, blocks)
    ranges = pd.concat([blocks, holes], ignore_index=True)
    ranges = ranges.iloc[np.argsort(ranges["address"].to_numpy(), kind="stable")].reset_index(drop=True)
    return Layout(event, mapped, ranges, overlaps + lost)


def _alive(born: pd.Series[int], died: pd.Series[int], event: int) -> npt.NDArray[np.bool_]:
    end = died.to_numpy()
    alive: npt.NDArray[np.bool_] = (born.to_numpy() <= event) & ((end == -1) | (end > event))
    return alive


def _merge_pieces(pieces: pd.DataFrame) -> pd.DataFrame:
    """Join neighbouring pieces of one expandable segment; order by address."""
    pieces = pieces.sort_values("address", kind="stable", ignore_index=True)
    address = pieces["address"].to_numpy()
    end = address + pieces["size"].to_numpy().astype(np.uint64)
    starts = np.ones(len(pieces), dtype=bool)
    if len(pieces) > 1:
        joined = pieces["expandable"].to_numpy()[1:] & (address[1:] == end[:-1])
        for column in ("stream", "pool", "small", "expandable"):
            values = pieces[column].to_numpy()
            joined &= values[1:] == values[:-1]
        starts[1:] = ~joined
    merged = pieces[starts].drop(columns=["born", "died"]).reset_index(drop=True)
    group = np.cumsum(starts) - 1
    size = np.zeros(len(merged), dtype=np.int64)
    np.add.at(size, group, pieces["size"].to_numpy())
    merged["size"] = size
    granularity = np.where(merged["small"].to_numpy(), SMALL_BUFFER, LARGE_SEGMENT)
    merged["page"] = np.where(merged["expandable"].to_numpy(), np.minimum(granularity, size), size)
    return merged


def _holes(segments: pd.DataFrame, blocks: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Find what lies between blocks, before the first and behind the last of each segment."""
    base = segments["address"].to_numpy()
    end = base + segments["size"].to_numpy().astype(np.uint64)
    owner = blocks["segment"].to_numpy()
    start = blocks["address"].to_numpy()
    stop = start + blocks["size"].to_numpy().astype(np.uint64)
    first = np.ones(len(blocks), dtype=bool)
    first[1:] = owner[1:] != owner[:-1]
    last = np.ones(len(blocks), dtype=bool)
    last[:-1] = first[1:]
    before = np.where(first, base[owner], np.concatenate([start[:1], stop[:-1]]))
    empty = np.setdiff1d(np.arange(len(segments)), owner)
    low = np.concatenate([before, stop[last], base[empty]])
    high = np.concatenate([start, end[owner[last]], end[empty]])
    segment = np.concatenate([owner, owner[last], empty])
    overlaps = int((high < low).sum())
    real = high > low
    low, high, segment = low[real], high[real], segment[real]
    return (
        pd.DataFrame(
            {
                "segment": segment,
                "address": low,
                "size": (high - low).astype(np.int64),
                "state": np.full(len(low), FREE, dtype=np.int8),
                "life": np.full(len(low), -1, dtype=np.int64),
                "requested": np.zeros(len(low), dtype=np.int64),
            }
        ),
        overlaps,
    )
