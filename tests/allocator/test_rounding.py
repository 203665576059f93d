"""Rounding of requests and sizes of segments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapana.allocator.rounding import Rounding, segment_size

MIB = 2**20


@pytest.mark.parametrize(
    ("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512), (0, 512)]
)
def test_default_is_multiples_of_512(size: int, rounded: int) -> None:
    assert Rounding().round_size(size) == rounded


@pytest.mark.parametrize(
    ("size", "rounded"),
    [
        (1200 * 1024, 1280 * 1024),
        (5 * MIB, 5 * MIB),
        (4 * MIB + 1, 5 * MIB),
        (8 * MIB, 8 * MIB),
        (2048, 2048),
        (2049, 2560),
    ],
)
def test_power_of_two_divisions(size: int, rounded: int) -> None:
    assert Rounding((4,) * 16).round_size(size) == rounded


def test_divisions_are_looked_up_by_size() -> None:
    table = Rounding((0,) * 6 + (8,) + (0,) * 9)
    assert table.round_size(33 * MIB + 5) == 33 * MIB + 512
    assert table.round_size(65 * MIB) == 72 * MIB


def test_torch_npu_pads_first() -> None:
    assert Rounding(pad=32).round_size(512) == 1024
    assert Rounding(pad=32).round_size(480) == 512


@given(
    st.lists(st.integers(0, 2**40), max_size=20),
    st.sampled_from([(0,) * 16, (4,) * 16, (0, 2, 4, 8) * 4, (1,) * 16]),
    st.sampled_from([0, 32]),
)
def test_arrays_round_as_single_sizes_do(sizes: list[int], divisions: tuple[int, ...], pad: int) -> None:
    rounding = Rounding(divisions, pad)
    rounded = rounding.round_sizes(np.array(sizes, dtype=np.int64)).tolist()
    assert rounded == [rounding.round_size(size) for size in sizes]
    assert all(after >= before + pad for before, after in zip(sizes, rounded, strict=True))
    assert all(after % 512 == 0 for after in rounded)


@pytest.mark.parametrize(
    ("rounded", "segment"),
    [(512, 2 * MIB), (MIB, 2 * MIB), (MIB + 512, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)],
)
def test_segments(rounded: int, segment: int) -> None:
    assert segment_size(rounded) == segment
