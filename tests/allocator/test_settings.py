"""PYTORCH_CUDA_ALLOC_CONF as PyTorch reads it."""

from __future__ import annotations

import pytest

from snapana.allocator.settings import AllocatorSettings, from_snapshot, parse_conf
from snapana.errors import SnapanaError
from tests.conftest import load_sample

MIB = 2**20


def test_empty_is_the_defaults() -> None:
    assert parse_conf("") == AllocatorSettings()


def test_options_and_white_space() -> None:
    found = parse_conf(" expandable_segments:True , max_split_size_mb : 128,garbage_collection_threshold:0.6")
    assert found.expandable_segments
    assert found.max_split_size == 128 * MIB
    assert found.garbage_collection_threshold == 0.6


def test_division_table_fills_below_the_first_and_above_the_last_key() -> None:
    found = parse_conf("roundup_power2_divisions:[64:8,256:4,1024:2,>:1]").roundup_power2_divisions
    assert found == (8,) * 7 + (0, 4, 0, 2) + (1,) * 5


def test_large_segments_raise_the_other_bounds() -> None:
    found = parse_conf("max_split_size_mb:64,large_segment_size_mb:40")
    assert (found.large_segment_size, found.max_non_split_rounding) == (40 * MIB, 40 * MIB)
    with pytest.raises(SnapanaError, match="at least 40"):
        parse_conf("max_split_size_mb:32,large_segment_size_mb:40")


@pytest.mark.parametrize(
    "conf",
    [
        "max_split_size_mb:10",
        "max_split_size_mb:x",
        "max_split_size_mb",
        "garbage_collection_threshold:1.0",
        "garbage_collection_threshold:high",
        "expandable_segments:true",
        "roundup_power2_divisions:3",
        "roundup_power2_divisions:[3:4]",
        "roundup_power2_divisions:[256:4",
        "backend:cudaMallocAsync",
        "no_such_option:1",
        "per_process_memory_fraction:1.5",
    ],
)
def test_what_pytorch_refuses_is_refused(conf: str) -> None:
    with pytest.raises(SnapanaError) as caught:
        parse_conf(conf)
    assert caught.value.code == "settings.invalid"


def test_resolved_values_of_a_snapshot_win_over_the_string() -> None:
    found = from_snapshot({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "max_split_size": -1})
    assert found.max_split_size is None
    assert found.conf == "max_split_size_mb:64"


@pytest.mark.parametrize("raw", [None, {}, {"max_split_size": "big", "expandable_segments": None, "later": 1}])
def test_missing_or_odd_values_are_passed_over(raw: object) -> None:
    assert from_snapshot(raw) == AllocatorSettings()  # type: ignore[arg-type]


def test_a_newer_option_does_not_hide_the_rest() -> None:
    found = from_snapshot({"PYTORCH_CUDA_ALLOC_CONF": "warp_drive:on", "expandable_segments": True})
    assert found.expandable_segments
    assert found.conf == "warp_drive:on"


@pytest.mark.parametrize("name", ["split64", "round_list", "expandable"])
def test_the_string_says_what_pytorch_resolved(name: str) -> None:
    recorded = load_sample(name).settings
    parsed = parse_conf(recorded.conf)
    assert recorded.conf
    assert parsed.max_split_size == recorded.max_split_size
    assert parsed.expandable_segments == recorded.expandable_segments
    assert parsed.roundup_power2_divisions == recorded.roundup_power2_divisions
