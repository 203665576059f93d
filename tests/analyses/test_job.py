"""A folder of ranks: one table, and what the odd ones do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from snapana.analyses.job import job_files, read_job
from snapana.cli import main
from snapana.errors import SnapanaError
from tests.cli.test_cli import run_json
from tests.conftest import SAMPLES

LIMIT = 2**34


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Four ranks, of which one has a larger batch and leaks."""
    for rank in range(4):
        source = "ddp_rank2" if rank == 2 else "ddp_rank0"
        shutil.copy(SAMPLES / f"{source}.pickle.xz", tmp_path / f"oom_rank{rank}.pickle.xz")
    (tmp_path / "notes.json").write_text("{}")
    return tmp_path


def test_the_odd_rank_is_named_with_its_batch_and_its_leak(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "summary", str(job))
    assert [(rank["rank"], rank["peak_allocated_bytes"]) for rank in found["ranks"]] == [
        (0, 773_467_648),
        (1, 773_467_648),
        (2, 1_100_869_120),
        (3, 773_467_648),
    ]
    (odd,) = found["outliers"]
    assert odd["rank"] == 2
    assert odd["batch_ratio"] == pytest.approx(1.75)
    assert odd["leaks"] == [{"site": "scenarios.py:506 ddp", "bytes_per_step": 6_291_456}]
    assert odd["only_here"] == [{"site": "scenarios.py:506 ddp", "bytes": 18_874_368}]
    assert main(["summary", str(job)]) == 0
    out = capsys.readouterr().out
    assert "Rank 2 stands out" in out
    assert "the batch looks 1.75 times as large" in " ".join(out.split())
    assert main(["summary", str(job), "--markdown"]) == 0
    assert "| 2 \\* | 1.03 GiB |" in capsys.readouterr().out


def test_the_page(job: Path, tmp_path: Path) -> None:
    page = tmp_path / "job.html"
    assert main(["report", str(job), "-o", str(page)]) == 0
    text = page.read_text()
    assert "<b>Rank 2 stands out</b>" in text
    assert "scenarios.py:506 ddp" in text
    assert "default-src 'none'" in text


def test_ranks_that_are_alike(job: Path) -> None:
    (job / "oom_rank2.pickle.xz").unlink()
    found = read_job(job, max_input=LIMIT)
    assert [rank.rank for rank in found.ranks] == [0, 1, 3]
    assert found.outliers == ()


def test_a_broken_file_is_a_row(job: Path) -> None:
    (job / "oom_rank1.pickle.xz").write_bytes(b"\xfd7zXZ\x00cut")
    found = read_job(job, max_input=LIMIT)
    assert [bool(rank.error) for rank in found.ranks] == [False, True, False, False]
    assert [outlier.rank.rank for outlier in found.outliers] == [2]


def test_ranks_of_traces_come_from_their_content(tmp_path: Path) -> None:
    source = SAMPLES / "ddp_rank2.pt.trace.json.xz"
    shutil.copy(source, tmp_path / "a.pt.trace.json.xz")
    (rank,) = read_job(tmp_path, max_input=LIMIT).ranks
    assert (rank.rank, rank.kind, rank.peak_allocated) == (2, "trace", 1_100_869_120)


def test_what_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SnapanaError, match=r"input\.no_recordings"):
        job_files(tmp_path)
    assert main(["summary", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "input.no_recordings"
    (tmp_path / "rank0.pickle").write_bytes(b"no")
    assert main(["summary", str(tmp_path)]) == 2
    assert main(["report", str(tmp_path), "--at", "end"]) == 2
    assert "[usage.folder]" in capsys.readouterr().err
    assert main(["peak", str(tmp_path)]) == 2
