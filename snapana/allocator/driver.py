"""Where the driver puts new segments: a guess, since no file tells; it decides ties between blocks of equal size only.

The rule was found by recording: ``cudaMalloc`` takes the lowest leftover that fits, else a new range of whole 32 MiB
at the top of the highest gap; what it does not use of the range is left over; ranges that are freed whole return.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from snapana.allocator.rounding import SMALL_BUFFER

_RANGE = 32 * 1024**2
_TOP = 0x7FFF_0000_0000
# What the context itself leaves over of its ranges.
_LEFTOVERS = (2 * 1024**2, 24 * 1024**2)


class Driver(Protocol):
    """Gives addresses, and takes them back."""

    def place(self, size: int) -> int:
        """Give the address of a new segment."""

    def release(self, addr: int, size: int) -> None:
        """Take a segment back."""


class Observed:
    """The rule above."""

    def __init__(self) -> None:
        # Free stretches within ranges, and free stretches between them: (address, size), by address.
        self._left: list[tuple[int, int]] = []
        self._gaps: list[tuple[int, int]] = [(0, _TOP)]
        # Ranges: address to size, and bytes used of each.
        self._ranges: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._starts: list[int] = []
        for size in _LEFTOVERS:
            addr = self._new_range(_RANGE)
            self._used[addr] += _RANGE - size
            insort(self._left, (addr + _RANGE - size, size))

    def place(self, size: int) -> int:
        """Give the lowest leftover that fits, or a new range."""
        for at, (addr, room) in enumerate(self._left):
            if room >= size:
                del self._left[at]
                if room > size:
                    insort(self._left, (addr + size, room - size))
                self._used[self._range_of(addr)] += size
                return addr
        whole = -(-size // _RANGE) * _RANGE
        addr = self._new_range(whole)
        self._used[addr] += size
        if whole > size:
            insort(self._left, (addr + size, whole - size))
        return addr

    def release(self, addr: int, size: int) -> None:
        """Merge with leftovers of the range; a range that nothing uses goes back."""
        start = self._range_of(addr)
        self._used[start] -= size
        end = start + self._ranges[start]
        if self._used[start] == 0:
            low, high = bisect_left(self._left, (start, 0)), bisect_left(self._left, (end, 0))
            del self._left[low:high]
            del self._starts[bisect_left(self._starts, start)], self._ranges[start], self._used[start]
            _merge(self._gaps, start, end - start, 0, _TOP)
        else:
            _merge(self._left, addr, size, start, end)

    def _new_range(self, size: int) -> int:
        for at in range(len(self._gaps) - 1, -1, -1):
            addr, room = self._gaps[at]
            if room > size:
                self._gaps[at] = (addr, room - size)
                start = addr + room - size
                self._ranges[start], self._used[start] = size, 0
                insort(self._starts, start)
                return start
        raise AssertionError("there are always addresses left")

    def _range_of(self, addr: int) -> int:
        at = bisect_left(self._starts, addr + 1) - 1
        return self._starts[at]


def _merge(free: list[tuple[int, int]], addr: int, size: int, low: int, high: int) -> None:
    """Put a stretch back among free ones, and join it with its neighbours between ``low`` and ``high``."""
    at = bisect_left(free, (addr, 0))
    if at < len(free) and free[at][0] == addr + size and free[at][0] < high:
        size += free.pop(at)[1]
    if at and free[at - 1][0] >= low and sum(free[at - 1]) == addr:
        addr, more = free.pop(at - 1)
        size += more
    insort(free, (addr, size))


class Upwards:
    """Places everything above what was placed before, 2 MiB aligned, with a gap so that nothing touches."""

    def __init__(self, first: int = 0x7F00_0000_0000) -> None:
        self._next = first

    def place(self, size: int) -> int:
        """Give the next address."""
        addr = self._next
        self._next += -(-size // SMALL_BUFFER) * SMALL_BUFFER + SMALL_BUFFER
        return addr

    def release(self, addr: int, size: int) -> None:
        """Nothing is reused."""


class Downwards:
    """Ever lower addresses."""

    def __init__(self) -> None:
        self._next = _TOP

    def place(self, size: int) -> int:
        """Give the address below the last."""
        self._next -= size
        return self._next

    def release(self, addr: int, size: int) -> None:
        """Nothing is reused."""


class Shuffled:
    """Anywhere, as a seed has it: what is placed later may come to lie below or above."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._starts: list[int] = []
        self._size: dict[int, int] = {}

    def place(self, size: int) -> int:
        """Give a free address below ``_TOP``."""
        while True:
            addr = self._random.randrange(SMALL_BUFFER, _TOP - size, SMALL_BUFFER)
            at = bisect_left(self._starts, addr)
            above = at == len(self._starts) or addr + size < self._starts[at]
            if above and (not at or self._starts[at - 1] + self._size[self._starts[at - 1]] < addr):
                self._starts.insert(at, addr)
                self._size[addr] = size
                return addr

    def release(self, addr: int, size: int) -> None:
        """Take a segment back."""
        del self._starts[bisect_left(self._starts, addr)], self._size[addr]


# The first is the best guess; the others show how much it matters.
DRIVERS: tuple[Callable[[], Driver], ...] = (
    Observed,
    Upwards,
    Downwards,
    *(partial(Shuffled, seed) for seed in range(8)),
)
