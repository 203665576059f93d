"""What the map of segments shows: which segments, and how each block is painted and named."""

from __future__ import annotations

from typing import Any

import pandas as pd

from snapana.allocator.layout import FREE, PENDING, Layout
from snapana.analyses.fragmentation import Fragmentation
from snapana.analyses.sites import by_site, site_codes, site_list
from snapana.report.charts import MapBlock, MapRow, describe_size
from snapana.snapshot.model import Snapshot
from snapana.units import format_bytes

MAP_ROWS = 48
# Sites with a colour of their own.
COLOURS = 8


def map_key(snapshot: Snapshot, device: int, layout: Layout) -> list[dict[str, Any]]:
    """Give the sites with a colour of their own: ``style``, ``site``, ``bytes``; the largest of the instant."""
    table = _live_sites(snapshot, device, layout)
    return [
        {"style": f"c{number}", "site": site, "bytes": int(size)}
        for number, (site, size) in enumerate(zip(table["site"], table["bytes"], strict=True))
    ]


def _live_sites(snapshot: Snapshot, device: int, layout: Layout) -> pd.DataFrame:
    lives = layout.blocks[layout.blocks["state"] != PENDING]["life"].to_numpy()
    return by_site(snapshot, snapshot.replay[device].allocations.iloc[lives]).head(COLOURS)


def map_rows(snapshot: Snapshot, device: int, cache: Fragmentation, layout: Layout) -> list[MapRow]:
    """Choose the segments to draw, those with most free bytes, then the largest, and name their blocks."""
    ranges, segments = layout.ranges, layout.segments
    free = ranges[ranges["state"] == FREE].groupby("segment")["size"].sum()
    table = segments.assign(free=free.reindex(segments.index, fill_value=0))
    table = table.sort_values(["free", "size"], ascending=False, kind="stable").head(MAP_ROWS)
    blocks = _painted(snapshot, device, layout, layout.blocks[layout.blocks["segment"].isin(table.index)])
    by_segment = dict(list(blocks.groupby("segment")))
    # Whose only block this is, keeps the page.
    alone = set(cache.worst["address"][cache.worst["blocks"] == 1].tolist())
    drawn = []
    for index in table.index.tolist():
        row = table.loc[index]
        base, size, page = int(row["address"]), int(row["size"]), max(int(row["page"]), 1)
        own = by_segment.get(index)
        drawn.append(
            MapRow(
                size=size,
                label=f"segment {base:#x}: {describe_size(size)}, {describe_size(int(row['free']))} free, "
                f"stream {int(row['stream'])}, pool {snapshot.pools[int(row['pool'])]}",
                blocks=[]
                if own is None
                else [
                    MapBlock(
                        offset=addr - base,
                        size=length,
                        style=style,
                        label=f"{addr:#x}: {format_bytes(length)} {site}",
                        pin=base + (addr - base) // page * page in alone,
                    )
                    for addr, length, style, site in zip(
                        own["address"].tolist(), own["size"].tolist(), own["style"], own["site"], strict=True
                    )
                ],
            )
        )
    return drawn


def _painted(snapshot: Snapshot, device: int, layout: Layout, blocks: pd.DataFrame) -> pd.DataFrame:
    """Add ``style`` and ``site`` to blocks."""
    codes = site_codes(snapshot, snapshot.replay[device].allocations.iloc[blocks["life"].to_numpy()])
    names = [site.label for site in site_list(snapshot)]
    styles = {int(code): f"c{number}" for number, code in enumerate(_live_sites(snapshot, device, layout)["code"])}
    pending = (blocks["state"] == PENDING).tolist()
    return blocks.assign(
        style=[
            "pending" if waits else styles.get(code, "cx") for code, waits in zip(codes.tolist(), pending, strict=True)
        ],
        site=[names[code] for code in codes.tolist()],
    )
