"""The recorder: files are written when it matters, and the training never notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import snapana
from snapana.analyses.overview import overview
from snapana.cli import main
from snapana.recording.runner import run_script
from snapana.recording.snippets import snippets
from tests.recording.standin import OutOfMemoryError, Torch

MIB = 2**20


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    return Torch(monkeypatch)


def step(torch: Torch, recording: Any, kept: list[int] | None = None) -> None:
    addr = torch.history.alloc(4 * MIB, "forward")
    if kept is not None:
        kept.append(torch.history.alloc(MIB, "keep"))
    torch.history.free(addr)
    recording.step()


def sidecar(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_name(f"{path.name}.json").read_text())
    return found


def test_a_whole_run(torch: Torch, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    kept: list[int] = []
    with snapana.record(path) as recording:
        torch.history.alloc(64 * MIB, "weights")
        for _ in range(8):
            step(torch, recording, kept)
    assert recording.path == path
    assert torch.calls == [("history", "all", 1_000_000), ("history", None, None)]
    snapshot = snapana.load(path)
    results = overview(snapshot)
    device = results.devices[0]
    assert device.coverage.complete
    assert device.steps.source == "ProfilerStep#"
    assert device.leaks.table["bytes_per_step"].tolist() == [MIB]
    assert snapshot.sidecar is not None
    assert (snapshot.sidecar.torch, snapshot.sidecar.reason, snapshot.sidecar.steps) == ("2.13.0", "end", 8)
    assert results.facts.card_of(0) == 8 * 2**30
    assert device.step_course is not None
    assert device.step_course.projection is not None


def test_a_failure_is_written_when_it_happens(torch: Torch, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    torch.fraction = 0.25
    with pytest.raises(OutOfMemoryError) as caught, snapana.record(path):
        addr = torch.history.alloc(MIB * 1024, "weights")
        try:
            torch.fail(512 * MIB)
        finally:
            # What unwinding does.
            torch.history.free(addr)
    assert "Tried to allocate 512.00 MiB" in str(caught.value)
    snapshot = snapana.load(path)
    assert overview(snapshot).devices[0].end.allocated == 1024 * MIB
    assert snapshot.sidecar is not None
    assert snapshot.sidecar.reason == "oom"
    assert snapshot.sidecar.message == str(caught.value)
    facts = overview(snapshot).facts
    assert (facts.limit_of(0), facts.knows_limit(0)) == (2 * 2**30, True)
    assert sidecar(path)["oom"]["requested_bytes"] == 512 * MIB


def test_a_failure_that_the_program_survives(torch: Torch, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    with snapana.record(path):
        for _ in range(50):
            torch.history.alloc(MIB, "weights")
            with pytest.raises(OutOfMemoryError):
                torch.fail(512 * MIB)
    assert sidecar(path)["reason"] == "oom"
    assert overview(snapana.load(path)).devices[0].end.allocated == 3 * MIB
    end = tmp_path / "run-end.pickle"
    assert overview(snapana.load(end)).devices[0].end.allocated == 50 * MIB


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_exceptions_pass_unchanged(torch: Torch, tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "run.pickle"
    with pytest.raises(type(error)) as caught, snapana.record(path):
        torch.history.alloc(MIB, "weights")
        raise error
    assert caught.value is error
    assert sidecar(path)["reason"] == ("exit" if isinstance(error, SystemExit) else "exception")


@pytest.mark.parametrize("when", ["start", "end", "folder"])
def test_what_fails_in_recording_leaves_the_training_alone(torch: Torch, tmp_path: Path, when: str) -> None:
    path = tmp_path / ("missing/run.pickle" if when == "folder" else "run.pickle")
    torch.broken = when == "start"
    done = []
    with pytest.warns(RuntimeWarning, match="the training goes on"), snapana.record(path) as recording:
        torch.broken = when != "folder"
        recording.step()
        done.append(1)
    assert done == [1]
    assert not path.exists()
    mine = ValueError("mine")
    torch.broken = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="mine") as caught, snapana.record(path):
            raise mine
    assert caught.value is mine


def test_without_a_device_there_is_a_warning_and_no_file(torch: Torch, tmp_path: Path) -> None:
    torch.available = False
    with (
        pytest.warns(RuntimeWarning, match="finds no CUDA device"),
        snapana.record(tmp_path / "run.pickle") as recording,
    ):
        recording.step()
        assert recording.dump() is None
    assert list(tmp_path.iterdir()) == []


def test_a_late_beginning_is_said(torch: Torch, tmp_path: Path) -> None:
    torch.before = 123
    with pytest.warns(RuntimeWarning, match="123 bytes were allocated before"), snapana.record(tmp_path / "run.pickle"):
        pass
    found = snapana.load(tmp_path / "run.pickle") if torch.history.events else None
    assert found is None
    assert sidecar(tmp_path / "run.pickle")["allocated_before_bytes"] == 123


def test_each_call_of_a_decorated_function_is_recorded(torch: Torch, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"

    @snapana.record(path)
    def train(size: int, *, site: str) -> int:
        return torch.history.alloc(size, site)

    train(MIB, site="one")
    train(MIB, site="two")
    assert train.__name__ == "train"
    assert len([one for one in tmp_path.iterdir() if one.suffix == ".pickle"]) == 2


def test_files_are_never_replaced(torch: Torch, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    path.write_text("precious")
    with snapana.record(path) as recording:
        torch.history.alloc(MIB, "weights")
    assert path.read_text() == "precious"
    assert recording.path is not None
    assert recording.path.name.startswith(f"run-pid{os.getpid()}-")


def test_each_rank_has_a_file(torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with snapana.record(tmp_path / "run.pickle") as recording:
        torch.history.alloc(MIB, "weights")
    assert recording.path is not None
    assert recording.path.name.startswith(f"run-rank3-pid{os.getpid()}-")
    snapshot = snapana.load(recording.path)
    assert snapshot.sidecar is not None
    assert (snapshot.sidecar.rank, snapshot.sidecar.world_size) == (3, 8)


def test_every_and_signals(torch: Torch, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
    with snapana.record(path, every=2) as recording:
        torch.history.alloc(MIB, "weights")
        recording.step()
        assert not path.exists()
        recording.step()
        assert sidecar(path)["reason"] == "every"
        os.kill(os.getpid(), signal.SIGUSR1)
        assert sidecar(path)["reason"] == "signal"
    assert sidecar(path)["reason"] == "end"
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)) == before


def test_sigterm_writes_and_ends_the_process(tmp_path: Path) -> None:
    """In a process of its own."""
    program = f"""
import os, signal, sys
import pytest
from tests.recording.standin import Torch
import snapana
torch = Torch(pytest.MonkeyPatch())
with snapana.record({str(tmp_path / "run.pickle")!r}):
    torch.history.alloc(2**20, "weights")
    os.kill(os.getpid(), signal.SIGTERM)
    print("still here")
"""
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == ""
    assert sidecar(tmp_path / "run.pickle")["reason"] == "signal"
    assert overview(snapana.load(tmp_path / "run.pickle")).devices[0].end.allocated == MIB


def test_the_ring_grows_to_the_wanted_steps(torch: Torch, tmp_path: Path) -> None:
    with snapana.record(tmp_path / "run.pickle", steps=1000, max_entries=1000) as recording:
        for _ in range(6):
            step(torch, recording)
    # A step makes an allocation and both halves of its free.
    sizes = [entries for _, enabled, entries in torch.calls if enabled]
    assert sizes[0] == 1000
    assert 3000 <= sizes[1] <= 3500
    assert len(sizes) == 2


SCRIPT = """
import sys
import torch
assert __name__ == "__main__"
assert sys.argv[1:] == ["--lr", "1"]
import torch
kind = {kind!r}
if kind == "error":
    raise KeyError("mine")
if kind == "exit":
    sys.exit(7)
"""


@pytest.mark.parametrize(("kind", "code"), [("fine", 0), ("error", 1), ("exit", 7)])
def test_a_script_runs_as_it_would(
    torch: Torch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    code: int,
) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(kind=kind))
    torch.history.alloc(MIB, "weights")
    assert run_script([str(script), "--lr", "1"], output=str(tmp_path / "run.pickle")) == code
    assert (tmp_path / "run.pickle").exists()
    err = capsys.readouterr().err
    if kind == "error":
        assert "KeyError: 'mine'" in err
        assert "runpy" not in err
        assert "snapana/recording" not in err
    assert torch.hooks == []


def test_steps_of_the_first_optimizer_count(torch: Torch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "train.py"
    script.write_text("import stepper\nstepper.go()\n")

    class Stepper:
        @staticmethod
        def go() -> None:
            first, second = object(), object()
            for _ in range(3):
                for optimizer in (first, second):
                    for hook in list(torch.hooks):
                        hook(optimizer, (), {})

    monkeypatch.setitem(sys.modules, "stepper", Stepper)  # type: ignore[arg-type]
    assert run_script([str(script)], output=str(tmp_path / "run.pickle")) == 0
    assert [mark for mark in torch.marks if mark.startswith("+")] == [f"+ProfilerStep#{number}" for number in range(4)]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(tmp_path / "none.py")]) == 2
    assert "[input.not_found]" in capsys.readouterr().err
    assert main(["record", "--trace-steps", "x", str(tmp_path / "none.py")]) == 2
    assert "[usage.trace_steps]" in capsys.readouterr().err


@pytest.mark.parametrize("version", [None, (2, 0), (2, 13)])
def test_snippets_are_short_and_sound(version: tuple[int, int] | None) -> None:
    for one in snippets(version, 250_000).values():
        assert len(one.code.splitlines()) <= 12, one.topic
        compile(one.code, one.topic, "exec")
    assert "250_000" in snippets(version, 250_000)["snapshot"].code


def test_howto(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["howto"]) == 0
    topics = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line][:-1]
    for topic in topics:
        assert main(["howto", topic]) == 0
        assert capsys.readouterr().out.startswith("# ")
    assert main(["howto", "cooking"]) == 2
    assert "[usage.howto]" in capsys.readouterr().err


def test_a_foreign_or_broken_sidecar_is_nothing(tmp_path: Path) -> None:
    from snapana.snapshot.sidecar import read_sidecar

    path = tmp_path / "x.pickle"
    place = tmp_path / "x.pickle.json"
    assert read_sidecar(path) is None
    for text in ("", "{", "[]", '{"snapana_sidecar": 2}', "[" * 100_000):
        place.write_text(text)
        assert read_sidecar(path) is None
    place.write_text(
        '{"snapana_sidecar": 1, "devices": [{"device": "x"}, 3], "rank": -1, "torch": {"a": 1}, "steps": true}'
    )
    found = read_sidecar(path)
    assert found is not None
    assert (found.devices, found.rank, found.torch, found.steps) == ((), None, "", None)
    assert read_sidecar(tmp_path / "x.pickle.xz") == found
