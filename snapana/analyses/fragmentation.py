"""How much of the reserved memory was free, why it could not be used, and who kept it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.layout import ALLOCATED, FREE, Layout
from snapana.analyses.sites import site_codes, site_list
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]

SEVERAL_SITES = "(several sites)"


@dataclass(frozen=True)
class Fragmentation:
    """The state of the cache at one instant, in bytes.

    Attributes:
        at: name of the instant, such as ``peak_reserved``.
        event: index in the device's trace, -1 before the first.
        reserved: all segments.
        allocated: blocks in use.
        active: blocks in use or waiting for another stream.
        cached: reserved - active = releasable + unreleasable + pool_held.
        releasable: what ``empty_cache()`` would have given back.
        unreleasable: free bytes in a segment (expandable: in a page) that an allocated block keeps.
        pool_held: free bytes in wholly free segments of private pools.
        internal_waste: active - requested.
        utilization: peak active / peak reserved of the whole window; None where nothing was reserved.
        pools: one row per (pool, stream, size class): ``pool`` (index), ``stream``, ``size_class``,
            ``segments``, ``reserved``, ``free``, ``unreleasable``, ``holes``, ``largest_hole``, ``external``
            (1 - largest hole / free; None where nothing is free).
        pins: one row per site that alone keeps segments or pages, and one for those that several keep:
            ``site``, ``block_bytes``, ``blocks``, ``pinned``, ``segments``, ``stack``. ``pinned`` sums to
            ``unreleasable``.
        worst: segments (expandable: pages) with most unreleasable bytes: ``address``, ``size``, ``pinned``,
            ``blocks``, ``site``.

    """

    at: str
    event: int
    reserved: int
    allocated: int
    active: int
    cached: int
    releasable: int
    unreleasable: int
    pool_held: int
    internal_waste: int
    utilization: float | None
    pools: pd.DataFrame
    pins: pd.DataFrame
    worst: pd.DataFrame


def fragmentation(snapshot: Snapshot, device: int, event: int | None = None, at: str = "") -> Fragmentation:
    """Analyse the layout after ``event``; by default where ``reserved`` is highest."""
    replay = snapshot.replay[device]
    if event is None:
        event, at = peak_reserved_event(snapshot, device), "peak_reserved"
    layout = replay.layout(event)
    row = replay.curves.iloc[event + 1]
    reserved, allocated = int(row["reserved"]), int(row["allocated"])
    active, requested = int(row["active"]), int(row["requested"])
    pages = _Pages(layout)
    unreleasable = int(pages.free[pages.pinned].sum())
    private = layout.segments["pool"].to_numpy()[pages.segment] != 0
    pool_held = int(pages.free[~pages.pinned & private].sum())
    peak_reserved = int(replay.curves["reserved"].max())
    pins, worst = _pins(snapshot, replay.allocations, layout, pages)
    return Fragmentation(
        at=at or f"event {event}",
        event=event,
        reserved=reserved,
        allocated=allocated,
        active=active,
        cached=reserved - active,
        releasable=int(pages.free.sum()) - unreleasable - pool_held,
        unreleasable=unreleasable,
        pool_held=pool_held,
        internal_waste=active - requested,
        utilization=int(replay.curves["active"].max()) / peak_reserved if peak_reserved else None,
        pools=_pools(layout, pages),
        pins=pins,
        worst=worst,
    )


def peak_reserved_event(snapshot: Snapshot, device: int) -> int:
    """Give the first event at which most was reserved; of those equal in a row, where most was allocated."""
    curves = snapshot.replay[device].curves
    reserved = curves["reserved"].to_numpy()
    return int(reserved.argmax()) - 1


class _Pages:
    """The parts of segments that can be given back one by one: pages of expandable ones, else the whole.

    Attributes:
        segment: row of the layout's segments, per page.
        start: address of each page.
        size: bytes.
        free: bytes of each page in no block, neither allocated nor pending.
        pinned: whether an allocated block lies in the page, at least in part.
        of_block: pairs (block row, page) for every allocated block and each page it touches.

    """

    def __init__(self, layout: Layout) -> None:
        segments = layout.segments
        base, size = segments["address"].to_numpy(), segments["size"].to_numpy()
        page = np.maximum(segments["page"].to_numpy(), 1)
        count = -(-size // page)
        first = np.cumsum(count) - count
        self.segment = np.repeat(np.arange(len(segments)), count)
        number = np.arange(int(count.sum())) - first[self.segment]
        offset = number * page[self.segment]
        self.start = base[self.segment] + offset.astype(np.uint64)
        self.size = np.minimum(page[self.segment], size[self.segment] - offset)
        blocks = layout.blocks
        self.free = self.size - self._covered(layout, blocks)
        live = blocks[blocks["state"] == ALLOCATED]
        owner = live["segment"].to_numpy()
        inside = (live["address"].to_numpy() - base[owner]).astype(np.int64)
        low = first[owner] + inside // page[owner]
        high = first[owner] + (inside + np.maximum(live["size"].to_numpy(), 1) - 1) // page[owner]
        width = np.minimum(high, len(self.size) - 1) - low + 1
        row = np.repeat(np.arange(len(live)), width)
        touched = np.arange(int(width.sum())) - np.repeat(np.cumsum(width) - width, width) + low[row]
        self.of_block = (live["life"].to_numpy()[row], touched)
        self.pinned = np.zeros(len(self.size), dtype=bool)
        self.pinned[touched] = True

    def _covered(self, layout: Layout, blocks: pd.DataFrame) -> IntArray:
        """Count bytes of blocks in each page, by the bytes of blocks below its start and its end."""
        start = blocks["address"].to_numpy()
        size = blocks["size"].to_numpy()
        below = np.concatenate([[0], np.cumsum(size)])

        def up_to(address: npt.NDArray[np.uint64]) -> IntArray:
            last = np.searchsorted(start, address, side="left")
            full = below[last]
            previous = np.maximum(last - 1, 0)
            if not len(start):
                return full
            end = start[previous] + size[previous].astype(np.uint64)
            over = np.where((last > 0) & (end > address), end - address, np.uint64(0))
            return full - over.astype(np.int64)

        return up_to(self.start + self.size.astype(np.uint64)) - up_to(self.start)


def _pools(layout: Layout, pages: _Pages) -> pd.DataFrame:
    segments = layout.segments
    keys = ["pool", "stream", "small"]
    per_segment = segments[[*keys, "size"]].assign(
        unreleasable=np.bincount(pages.segment, weights=pages.free * pages.pinned, minlength=len(segments)).astype(
            np.int64
        )
    )
    sums = per_segment.groupby(keys, as_index=False).agg(
        segments=("size", "count"), reserved=("size", "sum"), unreleasable=("unreleasable", "sum")
    )
    holes = layout.ranges[layout.ranges["state"] == FREE]
    holes = segments[keys].iloc[holes["segment"].to_numpy()].assign(size=holes["size"].to_numpy())
    free = holes.groupby(keys, as_index=False).agg(
        free=("size", "sum"), holes=("size", "count"), largest_hole=("size", "max")
    )
    table = sums.merge(free, on=keys, how="left")
    table = table.fillna({"free": 0, "holes": 0, "largest_hole": 0})
    table = table.astype({"free": "int64", "holes": "int64", "largest_hole": "int64"})
    table["external"] = [
        1 - largest / total if total else None
        for largest, total in zip(table["largest_hole"], table["free"], strict=True)
    ]
    table["size_class"] = np.where(table["small"], "small", "large")
    table = table.sort_values("reserved", ascending=False, kind="stable", ignore_index=True)
    return table[
        [
            "pool",
            "stream",
            "size_class",
            "segments",
            "reserved",
            "free",
            "unreleasable",
            "holes",
            "largest_hole",
            "external",
        ]
    ]


def _pins(
    snapshot: Snapshot, allocations: pd.DataFrame, layout: Layout, pages: _Pages
) -> tuple[pd.DataFrame, pd.DataFrame]:
    life, page = pages.of_block
    sites = site_list(snapshot)
    codes = site_codes(snapshot, allocations.iloc[life])
    keeps = pages.free[page] > 0
    pairs = pd.DataFrame({"page": page[keeps], "code": codes[keeps], "life": life[keeps]})
    per_page = pairs.groupby("page").agg(code=("code", "first"), last=("code", "max"), low=("code", "min"))
    several = len(sites)
    owner = np.where(per_page["last"] == per_page["low"], per_page["code"], several)
    of_page = pd.Series(owner, index=per_page.index, dtype="int64")
    names = [*(site.label for site in sites), SEVERAL_SITES]
    pairs["owner"] = of_page.reindex(pairs["page"]).to_numpy()
    blocks = pairs.drop_duplicates(["owner", "life"])
    blocks = blocks.assign(
        bytes=allocations["size"].to_numpy()[blocks["life"]],
        stack=allocations["stack"].to_numpy()[blocks["life"]],
    )
    held = blocks.groupby("owner").agg(block_bytes=("bytes", "sum"), blocks=("life", "count"), stack=("stack", "first"))
    kept = pd.DataFrame({"owner": owner, "pinned": pages.free[per_page.index.to_numpy()]})
    kept = kept.groupby("owner").agg(pinned=("pinned", "sum"), segments=("pinned", "count"))
    table = kept.join(held).reset_index()
    table["site"] = [names[code] for code in table["owner"]]
    table.loc[table["owner"] == several, "stack"] = -1
    table = table.sort_values(["pinned", "site"], ascending=[False, True], kind="stable", ignore_index=True)
    counts = pairs.groupby("page").size()
    worst = pd.DataFrame(
        {
            "address": pages.start[per_page.index.to_numpy()],
            "size": pages.size[per_page.index.to_numpy()],
            "pinned": pages.free[per_page.index.to_numpy()],
            "blocks": counts.reindex(per_page.index).to_numpy(),
            "site": [names[code] for code in owner],
        }
    ).sort_values("pinned", ascending=False, kind="stable", ignore_index=True)
    return table[["site", "block_bytes", "blocks", "pinned", "segments", "stack"]], worst
