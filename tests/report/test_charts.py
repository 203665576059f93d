"""Pictures keep what matters of a long curve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from snapana.report.charts import (
    MapBlock,
    MapRow,
    Mark,
    fragmentation_curve,
    memory_curve,
    segment_map,
    step_chart,
    thin,
)


@given(arrays.arrays(np.int64, st.integers(1, 5000), elements=st.integers(0, 2**40)), st.integers(1, 50))
def test_thinning_keeps_the_extremes_of_each_bucket(values: np.ndarray, buckets: int) -> None:  # type: ignore[type-arg]
    chosen = thin(values, buckets=buckets)
    assert values[chosen].max() == values.max()
    assert values[chosen].min() == values.min()
    assert (np.diff(chosen) > 0).all()
    assert {0, len(values) - 1} <= set(chosen.tolist())
    assert len(chosen) <= 4 * max(buckets, 1)


def curves(count: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    allocated = (np.arange(count) % 97) * 2**20
    return {"allocated": allocated, "active": allocated, "reserved": np.maximum.accumulate(allocated)}


def test_a_long_curve_is_a_small_picture() -> None:
    picture = memory_curve(curves(300_000), [Mark(96, "peak 96.00 MiB")], [1000, 2000])
    assert len(picture) < 200_000
    assert "peak 96.00 MiB" in picture


def test_pictures_take_their_colours_from_the_page() -> None:
    picture = memory_curve(curves(500), [Mark(10, "peak"), Mark(400, "out of memory", bad=True)])
    assert "currentColor" in picture
    assert "var(--allocated)" in picture
    assert "var(--bad)" in picture
    assert "#000" not in picture
    assert "#0" not in picture.replace('href="#', "").replace("url(#", "")


@pytest.mark.parametrize("count", [1, 2])
def test_the_shortest_curves_are_drawn(count: int) -> None:
    assert memory_curve(curves(count), [Mark(-1, "peak")]).startswith("<svg")
    assert step_chart(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), "a").startswith("<svg")


def test_labels_cannot_break_out() -> None:
    hostile = '"><script>alert(1)</script>'
    assert "<script" not in step_chart(np.arange(5), np.ones(5, dtype=np.int64), hostile)
    assert "<script" not in segment_map([MapRow(100, hostile, [MapBlock(0, 10, "c0", hostile)])])
    assert "<script" not in memory_curve(curves(9), [Mark(1, hostile)])


def test_blocks_too_narrow_to_see_are_folded() -> None:
    tiny = [MapBlock(offset, 512, "c0", f"block {offset}") for offset in range(0, 512 * 100, 512)]
    picture = segment_map([MapRow(2**30, "a", [*tiny, MapBlock(2**29, 2**28, "c1", "large", pin=True)])])
    assert "100 blocks, 50.00 KiB" in picture
    assert picture.count('class="c0"') == 1
    assert picture.count('class="c1 pin"') == 1


def test_blocks_to_scale() -> None:
    picture = segment_map([MapRow(1000, "a", [MapBlock(500, 250, "c0", "b")]), MapRow(500, "c", [])])
    assert 'class="c0" x="500.0" y="4" width="250.0"' in picture
    assert 'x="0" y="19" width="500.0"' in picture


def test_course_of_fragmentation_draws_gaps() -> None:
    used = np.array([np.nan, 0.5, 1.0])
    picture = fragmentation_curve(np.arange(-1, 2), used, np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert picture.startswith("<svg")
    assert "nan" not in picture.lower()
