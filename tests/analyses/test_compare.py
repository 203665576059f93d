"""Comparisons: they close, they are true, and they find lines again in an edited program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapana.analyses.compare import Comparison, compare, times, verdict_lines
from snapana.analyses.matching import match_sites
from snapana.analyses.overview import Overview, overview
from snapana.analyses.sites import site_list
from snapana.snapshot.model import InputInfo, Snapshot
from snapana.snapshot.normalise import normalise
from snapana.snapshot.stacks import Stacks
from tests.builders import History
from tests.conftest import load_sample, truth_of
from tests.test_truth import highest


def results_of(name: str) -> Overview:
    return overview(load_sample(name))


def compared(base: str, other: str) -> Comparison:
    return compare(results_of(base), results_of(other), (base, other))


def edited(snapshot: Snapshot, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Snapshot:
    """Rewrite the frames of a recording, as if the program had been edited."""
    frames = change(snapshot.stacks.frames.copy())
    stacks = Stacks(frames, snapshot.stacks.stacks, snapshot.stacks.forward)
    return replace(snapshot, stacks=stacks)


PAIRS = [
    ("train_adam", "train_b16"),
    ("train_adam", "train_checkpoint"),
    ("train_no_ctx", "train_adam"),
    ("train_truncated", "train_late"),
    ("oom_train", "llm_oom"),
    ("segments_list", "frag_basic"),
    ("frag_basic", "round_list"),
    ("streams", "stream_trace"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_differences_sum_to_the_difference_of_the_peaks(pair: tuple[str, str]) -> None:
    found = compared(*pair)
    assert found.sites["delta"].sum() == found.peak_allocated == found.categories["delta"].sum()
    assert found.sites["base_bytes"].sum() == found.base.device.peak.allocated
    assert found.sites["other_bytes"].sum() == found.other.device.peak.allocated
    assert set(found.sites["status"]) <= {"same", "moved", "new", "gone"}
    assert (found.sites["why"] != "").equals(found.sites["delta"] != 0)
    back = compared(pair[1], pair[0])
    assert back.peak_allocated == -found.peak_allocated


def test_the_same_file_twice() -> None:
    for name in ("train_adam", "oom_train", "train_truncated", "no_history"):
        found = compared(name, name)
        assert found.identical
        assert verdict_lines(found) == ["No difference."]


def test_a_larger_batch() -> None:
    found = compared("train_b4", "train_b16")
    real = highest(truth_of("train_b16"), "allocated") - highest(truth_of("train_b4"), "allocated")
    assert found.peak_allocated == real
    assert found.batch == pytest.approx(4.0)
    first, second = verdict_lines(found)
    assert "875.89 MiB higher (+129%)" in first
    assert "activations" in first
    assert first.endswith("the batch looks four times as large.")
    assert second == "Reserved peaks 952.00 MiB higher (+133%)."
    assert set(found.sites.loc[found.sites["category"] == "activations", "why"]) <= {"larger blocks", ""}


def test_checkpointing() -> None:
    found = compared("train_adam", "train_checkpoint")
    first, second = verdict_lines(found)
    assert "359.56 MiB lower (-37%), 100% of it in activations" in first
    assert "train_checkpoint uses activation checkpointing" in second
    assert found.batch is None
    assert found.apart == "allocated -37%, reserved -18%: part of what was freed stays reserved"


def test_other_settings() -> None:
    found = compared("frag_basic", "expandable")
    assert ("expandable_segments", "False", "True") in found.settings
    assert not found.identical
    assert "settings differ: expandable_segments True" in verdict_lines(found)[1]


def test_a_leak_is_named() -> None:
    found = compared("leak_none_kv", "leak_hook")
    assert "leak_hook leaks 2.00 MiB a step, most of it by" in " ".join(verdict_lines(found))
    assert "<lambda>" in " ".join(verdict_lines(found))


def test_notes_say_what_is_hard_to_compare() -> None:
    assert any("whole run" in note for note in compared("train_adam", "train_truncated").notes)


@settings(max_examples=25, deadline=None)
@given(shift=st.integers(1, 400), at=st.integers(0, 200), seed=st.integers(0, 3))
def test_lines_are_found_again_in_an_edited_program(shift: int, at: int, seed: int) -> None:
    snapshot = load_sample("train_adam")

    def insert_lines(frames: pd.DataFrame) -> pd.DataFrame:
        own = (frames["kind"] == "user") & (frames["line"] > at)
        frames.loc[own, "line"] += shift
        if seed == 1:
            frames["filename"] = frames["filename"].str.replace("/home/user/", "/srv/elsewhere/", regex=False)
        return frames

    found = compare(overview(snapshot), overview(edited(snapshot, insert_lines)))
    assert not set(found.sites["status"]) & {"new", "gone"}
    assert not found.sites["delta"].any()
    label = [site.label for site in site_list(snapshot)]
    for row in found.sites.itertuples():
        assert label[row.base_code] == row.base_site
        assert row.base_code == row.other_code


def test_renamed_functions_and_files_are_shown_as_moved() -> None:
    snapshot = load_sample("train_adam")

    def rename(frames: pd.DataFrame) -> pd.DataFrame:
        own = (frames["kind"] == "user") & (frames["name"] == "attend")
        frames.loc[own, "name"] = "attention"
        return frames

    other = edited(snapshot, rename)
    pairs = match_sites(snapshot, other)
    assert pairs == {number: number for number in range(len(site_list(snapshot)))}
    found = compare(overview(snapshot), overview(other))
    row = found.sites[found.sites["base_site"] == "scenarios.py:61 attend"].iloc[0]
    assert (row["status"], row["site"]) == ("moved", "scenarios.py:61 attention")

    def move(frames: pd.DataFrame) -> pd.DataFrame:
        frames["filename"] = frames["filename"].str.replace("scenarios.py", "trainer.py", regex=False)
        return frames

    statuses = compare(overview(snapshot), overview(edited(snapshot, move))).sites["status"]
    assert not set(statuses) & {"new", "gone"}


def made(build: Callable[[History], object]) -> Overview:
    history = History()
    build(history)
    return overview(normalise(history.document(), InputInfo("made.pickle", "snapshot")))


def test_why() -> None:
    mib = 2**20

    def few(history: History) -> None:
        for _ in range(6):
            kept = [history.alloc(4 * mib, "keep") for _ in range(2)]
            history.alloc(mib, "stay")
            for addr in kept:
                history.free(addr)

    def many(history: History) -> None:
        for _ in range(6):
            kept = [history.alloc(4 * mib, "keep") for _ in range(8)]
            history.alloc(mib, "stay")
            for addr in kept:
                history.free(addr)

    def large(history: History) -> None:
        for _ in range(6):
            kept = [history.alloc(12 * mib, "keep") for _ in range(2)]
            history.alloc(mib, "stay")
            for addr in kept:
                history.free(addr)

    def long(history: History) -> None:
        kept = []
        for _ in range(6):
            kept += [history.alloc(4 * mib, "keep") for _ in range(2)]
            history.alloc(mib, "stay")
        for addr in kept:
            history.free(addr)

    base = made(few)
    for build, why in ((many, "more blocks"), (large, "larger blocks"), (long, "lives longer")):
        found = compare(base, made(build)).sites
        assert found.loc[found["function"] == "keep", "why"].tolist() == [why]


def test_times() -> None:
    assert [times(ratio) for ratio in (4.0, 2.0, 0.5, 0.25, 1.75)] == [
        "four times as large",
        "twice as large",
        "half as large",
        "a quarter as large",
        "1.75 times as large",
    ]


def test_a_peak_that_is_not_known_is_not_compared() -> None:
    found = compared("train_adam", "no_history")
    assert not found.peaks_known
    assert verdict_lines(found)[0].startswith("no_history holds a final state only")
    assert not any("lower" in line or "higher" in line for line in verdict_lines(found))
    cut = compared("train_adam", "train_truncated")
    assert verdict_lines(cut)[0].startswith("Within what was recorded, of which a part is lost, train_truncated peaks")
    assert cut.apart == ""


@pytest.mark.parametrize("pair", [("train_adam", "leak_small"), ("graphs", "hf_lora"), ("train_checkpoint", "conv_b6")])
def test_no_batch_is_made_up(pair: tuple[str, str]) -> None:
    assert compared(*pair).batch is None
