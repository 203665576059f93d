"""Our figures against PyTorch's own, to the byte."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import snapana
from snapana.allocator.replay import DeviceReplay
from tests.conftest import CHECKOUT, SAMPLES, load_sample, truth_of

# Recordings that do not cover the run: what they lack.
PARTIAL = {"train_truncated", "train_late", "no_history", "segments_list"}
# PyTorch was asked for its peak only every eighth step: ours may be higher, never lower.
SAMPLED = {"leak_small"}
# PyTorch was asked after the exception had unwound and freed tensors: its end is another one.
UNWOUND = {"oom_train", "llm_oom", "retried"}
# The sidecar tells peaks only.
PEAKS_ONLY = {"record_leak", "record_oom"}

NAMES = sorted(path.name.removesuffix(".pickle.xz") for path in SAMPLES.glob("*.pickle.xz"))
FULL = [name for name in NAMES if name not in PARTIAL]


def highest(truth: dict[str, Any], what: str) -> int:
    """Give PyTorch's highest ``allocated`` or ``reserved``; it resets its peaks at each step."""
    rows = [row[f"{what}_bytes.all.peak"] for row in truth.get("steps", [])]
    return max([*rows, *((truth.get(when) or {}).get(f"max_{what}", 0) for when in ("final", "at_oom"))])


def replay_of(name: str) -> DeviceReplay:
    return next(iter(load_sample(name).replay.devices.values()))


def test_samples_are_there() -> None:
    assert len(FULL) >= 15
    assert sum(path.stat().st_size for path in SAMPLES.iterdir()) < 4_000_000


@pytest.mark.parametrize("name", FULL)
def test_peaks_equal_pytorchs(name: str) -> None:
    replay, truth = replay_of(name), truth_of(name)
    assert replay.coverage.complete
    assert int(replay.curves["reserved"].max()) == highest(truth, "reserved")
    if name in SAMPLED:
        assert int(replay.curves["allocated"].max()) >= highest(truth, "allocated")
    else:
        assert int(replay.curves["allocated"].max()) == highest(truth, "allocated")


@pytest.mark.parametrize("name", [name for name in FULL if name not in UNWOUND | PEAKS_ONLY])
def test_end_equals_pytorchs(name: str) -> None:
    """Where a recording ends with the failure, its end is what PyTorch said then."""
    end, truth = replay_of(name).curves.iloc[-1], truth_of(name)
    final = truth["at_oom"] if "at_oom" in truth else truth["final"]
    assert (int(end["allocated"]), int(end["reserved"])) == (final["allocated"], final["reserved"])


@pytest.mark.parametrize("name", NAMES)
def test_events_explain_the_final_state(name: str) -> None:
    for replay in load_sample(name).replay.devices.values():
        assert replay.coverage.mismatches == {}


@pytest.mark.parametrize("name", ["train_adam", "train_no_ctx", "hf_lora", "leak_hook"])
def test_every_step_end_equals_pytorchs(name: str) -> None:
    """The curves pass through each figure that PyTorch gave, at its time."""
    replay = replay_of(name)
    times = replay.events["time_us"].to_numpy()
    for row in truth_of(name)["steps"]:
        after = int(times.searchsorted(row["time_ns"] / 1000, side="right"))
        state = replay.curves.iloc[after]
        for what in ("allocated", "active", "requested", "reserved"):
            assert int(state[what]) == row[f"{what}_bytes.all.current"], (row["tag"], what)


def test_window_of_a_ring() -> None:
    """Of a ring that kept 600 events the window's peak is known, the run's is not."""
    replay = replay_of("train_truncated")
    assert int(replay.curves["allocated"].max()) == 642_557_440
    assert replay.coverage.preexisting_bytes == 642_557_440
    assert replay.coverage.unmatched_frees == 87
    assert not replay.coverage.complete


def test_late_start_still_finds_the_peak() -> None:
    replay = replay_of("train_late")
    assert int(replay.curves["allocated"].max()) == highest(truth_of("train_late"), "allocated")
    assert replay.coverage.preexisting_bytes == 111_312_896
    assert not replay.coverage.complete


# ---- the whole collection, where it is at hand

COLLECTION = CHECKOUT.parent / "shared" / "samples"


@cache
def expected() -> dict[str, Any]:
    path = COLLECTION / "expected.json"
    return json.loads(path.read_text()) if path.is_file() else {}


@pytest.mark.skipif(not expected(), reason="the full collection of recordings is not beside the checkout")
def test_whole_collection() -> None:
    """Peaks, ends and coverage of each recording equal those of an independent replay."""
    wrong = {}
    for name, want in expected().items():
        replay = snapana.load(Path(COLLECTION, f"{name}.xz")).replay[want["device"]]
        curves, coverage = replay.curves, replay.coverage
        got = {
            "peak_allocated_window": int(curves["allocated"].max()),
            "peak_event": replay.peak_event(),
            "peak_active_window": int(curves["active"].max()),
            "peak_requested_window": int(curves["requested"].max()),
            "peak_reserved_window": int(curves["reserved"].max()),
            "end_allocated": int(curves["allocated"].iloc[-1]),
            "end_active": int(curves["active"].iloc[-1]),
            "end_requested": int(curves["requested"].iloc[-1]),
            "end_reserved": int(curves["reserved"].iloc[-1]),
            "preexisting_bytes": coverage.preexisting_bytes,
            "preexisting_blocks": coverage.preexisting_blocks,
            "unmatched_frees": coverage.unmatched_frees,
            "window_covers_run": coverage.complete,
        }
        difference = {key: (value, want[key]) for key, value in got.items() if value != want[key]}
        if difference or coverage.mismatches:
            wrong[name] = (difference, coverage.mismatches)
    assert not wrong
