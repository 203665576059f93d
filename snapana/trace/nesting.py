"""Which ranges of a thread are around an instant."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from snapana.trace.model import FloatArray, IntArray, Spans

NONE = -1
_OPEN = float("inf")
# Python's own limit of recursion is 1,000.
_DEEPEST = 1_000


class Nesting:
    """The ranges of all threads as trees: each range's parent, and chains of names, interned.

    Args:
        spans: ordered by thread and start, outer ranges first.

    Attributes:
        parent: index of the range around each, -1 at the top.
        chain: number of each one's chain of names, itself innermost.
        chains: each chain as (number of the chain around it, code of the name); -1 for none around.

    """

    def __init__(self, spans: Spans) -> None:
        self.spans = spans
        parents: list[int] = []
        chain_of: list[int] = []
        known: dict[tuple[int, int], int] = {}
        chains: list[tuple[int, int]] = []
        ends: list[float] = []
        open_ends: list[float] = []
        open_at: list[int] = []
        thread = NONE
        rows = zip(spans.thread.tolist(), spans.end.tolist(), spans.start.tolist(), spans.name.tolist(), strict=True)
        for number, (own, end, start, name) in enumerate(rows):
            if own != thread:
                thread = own
                open_ends.clear()
                open_at.clear()
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
                open_at.pop()
            parent = open_at[-1] if open_at else NONE
            if open_ends and end == _OPEN:
                # What was open when the profiler stopped is no longer than what is around it.
                end = open_ends[-1]
            ends.append(end)
            parents.append(parent)
            key = (chain_of[parent] if parent >= 0 else NONE, name)
            chain = known.get(key)
            if chain is None:
                chain = known[key] = len(chains)
                chains.append(key)
            chain_of.append(chain)
            open_ends.append(end)
            open_at.append(number)
        self.parent = np.array(parents, dtype=np.int64)
        self.chain = np.array(chain_of, dtype=np.int64)
        self.chains = chains
        self._end = np.array(ends, dtype=np.float64)
        self._threads, first = np.unique(spans.thread, return_index=True)
        self._first = np.append(first, len(spans)).astype(np.int64)

    def around(self, thread: IntArray, time: FloatArray) -> IntArray:
        """Give for each instant the innermost range of its thread that covers it, -1 where there is none."""
        found = np.full(len(time), NONE, dtype=np.int64)
        for number, own in enumerate(self._threads.tolist()):
            mine = np.flatnonzero(thread == own)
            if not len(mine):
                continue
            low, high = int(self._first[number]), int(self._first[number + 1])
            at = low + np.searchsorted(self.spans.start[low:high], time[mine], side="right") - 1
            found[mine] = self._covering(np.where(at < low, NONE, at), time[mine])
        return found

    def _covering(self, at: IntArray, time: FloatArray) -> IntArray:
        """Go up from the range that began last to one that has not ended."""
        left = np.flatnonzero(at >= 0)
        while len(left):
            over = self._end[at[left]] < time[left]
            left = left[over]
            at[left] = self.parent[at[left]]
            left = left[at[left] >= 0]
        return at

    def names(self, chain: int) -> list[int]:
        """Give the codes of a chain's names, innermost first."""
        found: list[int] = []
        while chain >= 0 and len(found) < _DEEPEST:
            chain, name = self.chains[chain]
            found.append(name)
        return found


def chains_of(nesting: Nesting, at: IntArray) -> npt.NDArray[np.int64]:
    """Give the chain of each range, -1 for none."""
    return np.append(nesting.chain, NONE)[at]
