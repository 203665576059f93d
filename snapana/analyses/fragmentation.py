"""How much of the reserved memory was free, why it could not be used, who kept it, and how that went on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.allocator.layout import ALLOCATED, FREE, PENDING, Layout
from snapana.analyses.sites import by_site, site_codes, site_list
from snapana.snapshot.model import ACTION_CODE, Snapshot

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
        utilization: peak active / peak reserved of the whole window; None where nothing was reserved, or where
            nothing but the final state was recorded.
        pools: one row per (pool, stream, size class): ``pool`` (index), ``stream``, ``size_class``,
            ``segments``, ``reserved``, ``free``, ``unreleasable``, ``holes``, ``largest_hole``, ``external``
            (1 - largest hole / free; None where nothing is free).
        holes: their sizes: one row per pool, stream, size class and power of two: the first three as above,
            ``at_least`` (bytes; holes of this to below twice this), ``holes``, ``bytes``.
        pins: one row per site that alone keeps segments or pages, and one for those that several keep:
            ``site``, ``block_bytes``, ``blocks``, ``pinned``, ``segments``, ``stack``, ``born`` (event at which the
            oldest of the blocks was allocated, -1 before the window). ``pinned`` sums to ``unreleasable``.
        pairs: segments that exactly two sites keep: ``first``, ``second`` (sites), ``pinned``, ``segments``.
        worst: segments (expandable: pages) with most unreleasable bytes: ``address``, ``size``, ``pinned``,
            ``blocks``, ``block_bytes``, ``site``, ``born`` (as above).
        pending: bytes that wait for another stream, by site of their allocation: as ``by_site``.

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
    holes: pd.DataFrame
    pins: pd.DataFrame
    pairs: pd.DataFrame
    worst: pd.DataFrame
    pending: pd.DataFrame


def fragmentation(snapshot: Snapshot, device: int, event: int | None = None, at: str = "") -> Fragmentation:
    """Analyse the layout after ``event``; by default where ``reserved`` is highest."""
    replay = snapshot.replay[device]
    if event is None:
        event, at = replay.peak_event("reserved"), "peak_reserved"
    layout = replay.layout(event)
    row = replay.curves.iloc[event + 1]
    reserved, allocated = int(row["reserved"]), int(row["allocated"])
    active, requested = int(row["active"]), int(row["requested"])
    pages = _Pages(layout)
    free, unreleasable = int(pages.free.sum()), int(pages.free[pages.pinned].sum())
    private = layout.segments["pool"].to_numpy()[pages.segment] != 0
    pool_held = int(pages.free[~pages.pinned & private].sum())
    peak_reserved = int(replay.curves["reserved"].max())
    told = len(replay.events) > 0 and peak_reserved > 0
    pins, pairs, worst = _pins(snapshot, replay.allocations, layout, pages)
    waiting = layout.ranges["life"].to_numpy()[layout.ranges["state"].to_numpy() == PENDING]
    return Fragmentation(
        at=at or f"event {event}",
        event=event,
        reserved=reserved,
        allocated=allocated,
        active=active,
        # Reserved - active in a sound file; blocks outside of all known segments are not cached.
        cached=free,
        releasable=free - unreleasable - pool_held,
        unreleasable=unreleasable,
        pool_held=pool_held,
        internal_waste=active - requested,
        utilization=int(replay.curves["active"].max()) / peak_reserved if told else None,
        pools=_pools(layout, pages),
        holes=_histogram(layout),
        pins=pins,
        pairs=pairs,
        worst=worst,
        pending=by_site(snapshot, replay.allocations.iloc[waiting]),
    )


# ---- the course over the window

# So many instants are looked at, besides those that matter.
COURSE_POINTS = 80
# From here on pages are so many that fewer instants have to do.
_HUGE = 2**40


def course(snapshot: Snapshot, device: int) -> pd.DataFrame:
    """Follow free memory over the window.

    Returns:
        One row per instant, evenly spread over the events, with those of most allocated and most reserved and all
        failures: ``event``, ``reserved``, ``active``, ``utilization`` (active / reserved, NaN where nothing is
        reserved), ``free`` (bytes of the default pool that are in no block), ``largest_hole`` (of the default pool,
        any stream), ``unreleasable`` (bytes, all pools).

    """
    replay = snapshot.replay[device]
    failed = np.flatnonzero(replay.events["action"].cat.codes.to_numpy() == ACTION_CODE["oom"])
    points = COURSE_POINTS if int(replay.curves["reserved"].max()) < _HUGE else COURSE_POINTS // 10
    spread = np.linspace(-1, len(replay.events) - 1, points).round().astype(np.int64)
    named = np.array([replay.peak_event(), replay.peak_event("reserved"), *failed[-points:]], dtype=np.int64)
    events = np.unique(np.concatenate([spread, named]))
    rows = [_course_row(replay.layout(event)) for event in events.tolist()]
    table = replay.curves.iloc[events + 1][["event", "reserved", "active"]].reset_index(drop=True)
    table["utilization"] = table["active"] / table["reserved"].where(table["reserved"] > 0)
    return table.join(pd.DataFrame(rows, columns=["free", "largest_hole", "unreleasable"]))


def _course_row(layout: Layout) -> tuple[int, int, int]:
    pages = _Pages(layout)
    holes = layout.holes
    default = layout.segments["pool"].to_numpy()[holes["segment"].to_numpy()] == 0
    size = holes["size"].to_numpy()[default]
    return int(size.sum()), int(size.max(initial=0)), int(pages.free[pages.pinned].sum())


# ---- pages, pools, holes


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


def _histogram(layout: Layout) -> pd.DataFrame:
    """Count holes by power of two."""
    keys = ["pool", "stream", "small"]
    holes = layout.holes
    size = holes["size"].to_numpy()
    power = np.floor(np.log2(np.maximum(size, 1))).astype(np.int64)
    owned = layout.segments[keys].iloc[holes["segment"].to_numpy()]
    table = owned.assign(at_least=np.left_shift(np.int64(1), power), size=size)
    table = table.groupby([*keys, "at_least"], as_index=False).agg(holes=("size", "count"), bytes=("size", "sum"))
    table["size_class"] = np.where(table["small"], "small", "large")
    return table[["pool", "stream", "size_class", "at_least", "holes", "bytes"]]


# ---- pins


def _pins(
    snapshot: Snapshot, allocations: pd.DataFrame, layout: Layout, pages: _Pages
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Say who keeps pages from being released: by site, by pair of sites, and page by page."""
    life, page = pages.of_block
    keeps = pages.free[page] > 0
    life, page = life[keeps], page[keeps]
    pairs = pd.DataFrame(
        {
            "page": page,
            "code": site_codes(snapshot, allocations.iloc[life]),
            "life": life,
            "bytes": allocations["size"].to_numpy()[life],
            "born": allocations["alloc"].to_numpy()[life],
            "stack": allocations["stack"].to_numpy()[life],
        }
    )
    names = [*(site.label for site in site_list(snapshot)), SEVERAL_SITES]
    several = len(names) - 1
    per_page = pairs.groupby("page").agg(
        low=("code", "min"),
        high=("code", "max"),
        sites=("code", "nunique"),
        blocks=("life", "count"),
        block_bytes=("bytes", "sum"),
        born=("born", "min"),
    )
    per_page["pinned"] = pages.free[per_page.index.to_numpy()]
    per_page["owner"] = np.where(per_page["sites"] == 1, per_page["low"], several)
    pairs["owner"] = per_page["owner"].reindex(pairs["page"]).to_numpy()
    # A block that reaches over two pages is one block of its site.
    blocks = pairs.drop_duplicates(["owner", "life"])
    held = blocks.groupby("owner").agg(
        block_bytes=("bytes", "sum"), blocks=("life", "count"), stack=("stack", "first"), born=("born", "min")
    )
    kept = per_page.groupby("owner").agg(pinned=("pinned", "sum"), segments=("pinned", "count"))
    table = kept.join(held).reset_index()
    table["site"] = [names[code] for code in table["owner"]]
    table.loc[table["owner"] == several, "stack"] = -1
    table = table.sort_values(["pinned", "site"], ascending=[False, True], kind="stable", ignore_index=True)
    two = per_page[per_page["sites"] == 2].groupby(["low", "high"], as_index=False)
    both = two.agg(pinned=("pinned", "sum"), segments=("pinned", "count"))
    both["first"] = [names[code] for code in both["low"]]
    both["second"] = [names[code] for code in both["high"]]
    both = both.sort_values("pinned", ascending=False, kind="stable", ignore_index=True)
    worst = per_page.assign(
        address=pages.start[per_page.index.to_numpy()],
        size=pages.size[per_page.index.to_numpy()],
        site=[names[code] for code in per_page["owner"]],
    ).sort_values("pinned", ascending=False, kind="stable", ignore_index=True)
    return (
        table[["site", "block_bytes", "blocks", "pinned", "segments", "stack", "born"]],
        both[["first", "second", "pinned", "segments"]],
        worst[["address", "size", "pinned", "blocks", "block_bytes", "site", "born"]],
    )
