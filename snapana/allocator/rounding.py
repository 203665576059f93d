"""How the allocator rounds a request and sizes a segment.

Rules: c10/cuda/CUDACachingAllocator.cpp, ``round_size`` and ``get_allocation_size``; constants:
c10/core/AllocatorConfig.h.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MIN_BLOCK = 512
SMALL_SIZE = 1024**2
SMALL_BUFFER = 2 * 1024**2
MIN_LARGE_ALLOC = 10 * 1024**2
ROUND_LARGE = 2 * 1024**2
LARGE_SEGMENT = 20 * 1024**2

# Slots of ``roundup_power2_divisions``: 1 MiB, 2 MiB, ... 32 GiB.
DIVISION_SLOTS = 16
_FIRST_SLOT_LOG2 = 20


@dataclass(frozen=True)
class Rounding:
    """Rounding of requests to block sizes.

    Attributes:
        divisions: ``roundup_power2_divisions`` by slot: slot i holds for sizes from 2**(20+i) bytes on, the first
            also below, the last also above; 0 or 1 is off.
        pad: bytes added to every request first (torch_npu: 32).

    """

    divisions: tuple[int, ...] = (0,) * DIVISION_SLOTS
    pad: int = 0

    def round_size(self, size: int) -> int:
        """Give the bytes that a request of ``size`` bytes occupies at least."""
        size += self.pad
        if size < MIN_BLOCK:
            return MIN_BLOCK
        power = size.bit_length() - 1
        division = self.divisions[min(max(power - _FIRST_SLOT_LOG2, 0), DIVISION_SLOTS - 1)]
        if division > 1 and size > MIN_BLOCK * division:
            floor = 1 << power
            return floor if size == floor else _round_up(size, (floor // division) or 2 * floor)
        return _round_up(size, MIN_BLOCK)

    def round_sizes(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Give ``round_size`` of each element."""
        sizes = np.asarray(sizes, dtype=np.int64)
        if any(division > 1 for division in self.divisions):
            distinct, inverse = np.unique(sizes, return_inverse=True)
            return np.array([self.round_size(size) for size in distinct.tolist()], dtype=np.int64)[inverse]
        padded = sizes + self.pad
        rounded: npt.NDArray[np.int64] = np.maximum(-(-padded // MIN_BLOCK) * MIN_BLOCK, MIN_BLOCK)
        return rounded


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def segment_size(rounded: int, large_segment: int = LARGE_SEGMENT) -> int:
    """Give the bytes of a new segment for a rounded request (``get_allocation_size``)."""
    if rounded <= SMALL_SIZE:
        return SMALL_BUFFER
    if rounded < MIN_LARGE_ALLOC:
        return large_segment
    return _round_up(rounded, ROUND_LARGE)
