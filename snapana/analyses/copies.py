"""Second copies of the parameters, recognised by their sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from snapana.analyses.rules import CATEGORIES
from snapana.analyses.sites import site_codes, site_list
from snapana.snapshot.model import Snapshot

IntArray = npt.NDArray[np.int64]

# What scale says: half the bytes an element, or double.
_SCALES = ((1.0, "of the same precision"), (0.5, "of half the precision"), (2.0, "of twice the precision"))
# So much of the parameters must be matched, block by block.
_MATCHED = 0.9
_EXPECTED = {CATEGORIES.index(name) for name in ("parameters", "gradients", "optimizer")}


@dataclass(frozen=True)
class Copy:
    """Blocks of one line that have the sizes of the parameters.

    Attributes:
        site: the line that made them.
        bytes: requested bytes of them.
        scale: their bytes over those of the parameters that they match: 1, 0.5 or 2.
        precision: the same in words.

    """

    site: str
    bytes: int
    scale: float
    precision: str


def copies(snapshot: Snapshot, device: int, event: int, codes: IntArray) -> list[Copy]:
    """Find lines that hold blocks of the parameters' sizes after an event, besides gradients and optimizer state.

    Args:
        snapshot: the file.
        device: ordinal.
        event: the instant.
        codes: as of ``categorise``.

    """
    live = snapshot.replay[device].live(event)
    own = codes[live.index.to_numpy()]
    size = live["requested"].to_numpy()
    mine = pd.Series(size[own == CATEGORIES.index("parameters")]).value_counts()
    total = float((mine.index.to_numpy() * mine.to_numpy()).sum())
    if len(mine) < 3:
        return []
    sites, names = site_codes(snapshot, live), site_list(snapshot)
    others = ~np.isin(own, list(_EXPECTED))
    found = []
    for code in np.unique(sites[others]).tolist():
        theirs = pd.Series(size[others & (sites == code)]).value_counts()
        if len(theirs) < 3:
            continue
        for scale, precision in _SCALES:
            scaled = pd.Series(theirs.to_numpy(), index=theirs.index.to_numpy() / scale)
            both = np.minimum(mine.to_numpy(), scaled.reindex(mine.index, fill_value=0).to_numpy())
            matched = float((mine.index.to_numpy() * both).sum())
            surplus = float((scaled.index.to_numpy() * scaled.to_numpy()).sum()) - matched
            if matched >= _MATCHED * total and surplus <= (1 - _MATCHED) * total:
                found.append(Copy(names[code].label, int(matched * scale), scale, precision))
                break
    return sorted(found, key=lambda copy: -copy.bytes)
