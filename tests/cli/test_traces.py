"""The commands on profiler traces and exported timelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import run, run_json, sample
from tests.conftest import SAMPLES, truth_of
from tests.test_truth import highest


def trace(name: str) -> str:
    return str(SAMPLES / f"{name}.trace.json.xz")


def test_summary_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "summary", trace("train_adam"))
    assert document["input"]["kind"] == "trace"
    (device,) = [one for one in document["devices"] if one["device"] == 0]
    assert device["peak"]["allocated_bytes"] == highest(truth_of("train_adam"), "allocated")
    assert device["fragmentation"] is None
    assert device["card"] is None
    assert device["total_memory_bytes"] > 100 * 2**30
    for what in ("operators", "modules", "forward_operators"):
        assert sum(row["at_peak_bytes"] for row in device[what]) == device["peak"]["allocated_bytes"]


def test_folded_operators_have_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "summary", trace("train_adam"), "--top", "2", "--device", "0")
    (device,) = document["devices"]
    rows = device["operators"]
    assert [row["name"] is None for row in rows] == [False, False, True]
    assert sum(row["at_peak_bytes"] for row in rows) == device["peak"]["allocated_bytes"]


@pytest.mark.parametrize("by", ["operator", "module", "forward_operator", "step"])
@pytest.mark.parametrize("joined", [False, True])
def test_peak_by_what_a_trace_tells(capsys: pytest.CaptureFixture[str], by: str, joined: bool) -> None:
    what = (sample("train_adam"), "--trace", trace("train_adam")) if joined else (trace("train_adam"), "--device", "0")
    document = run_json(capsys, "peak", *what, "--by", by, "--top", "3")
    peak = document["devices"][0]["peak"]
    assert sum(row["bytes"] for row in peak["groups"]) + peak["other_groups_bytes"] == peak["allocated_bytes"]
    assert len(peak["groups"]) > 1
    code, out, _ = run(capsys, "peak", *what, "--by", by, "--top", "3")
    assert code == 0
    assert peak["groups"][0]["name"] in out


def test_a_snapshot_alone_knows_no_modules(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "peak", sample("train_adam"), "--by", "module")
    assert (code, out) == (2, "")
    assert "[usage.by]" in err
    assert "--trace" in err


def test_the_emptied_cache_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "summary", trace("train_empty_cache"))
    (finding,) = [one for one in document["findings"] if one["code"] == "churn.empty_cache"]
    assert "29 calls that get memory and 29 that give it back, 528.00 MiB each way" in finding["message"]
    code, out, _ = run(capsys, "summary", trace("train_empty_cache"))
    assert code == 0
    assert "scenarios.py(134): one" in out


def test_leaks_of_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    what = str(SAMPLES / "ddp_rank2.pt.trace.json.xz")
    (device,) = [one for one in run_json(capsys, "leaks", what)["devices"] if one["device"] == 0]
    (row,) = device["leaks"]
    assert row["bytes_per_step"] == 6 * 2**20


def test_report_of_both(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, _, err = run(capsys, "report", sample("train_adam"), "--trace", trace("train_adam"), "-o", str(page))
    assert (code, err) == (0, f"Wrote {page}\n")
    text = page.read_text()
    assert "memory events matched, 0 did not" in text
    assert "nn.Module: Linear_0" in text
    document = run_json(capsys, "summary", sample("train_adam"), "--trace", trace("train_adam"))
    (found,) = document["join"]["devices"]
    assert (found["matched_events"], found["unmatched_events"]) == (3429, 0)


def test_other_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "summary", sample("train_adam"), "--trace", trace("stream_trace"))
    assert code == 2
    assert "not of the same run" in err


@pytest.mark.parametrize("name", ["train.timeline.json.gz", "train.timeline.raw.json.gz"])
def test_timelines(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    path = str(SAMPLES / name)
    code, out, _ = run(capsys, "summary", path)
    assert code == 0
    assert "optimizer" in out
    document = run_json(capsys, "summary", path)
    assert document["input"]["kind"] == "timeline"
    page = tmp_path / "page.html"
    assert run(capsys, "report", path, "-o", str(page))[0] == 0
    assert "optimizer" in page.read_text()
    code, _, err = run(capsys, "peak", path)
    assert code == 2
    assert "[input.timeline]" in err
