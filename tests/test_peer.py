"""Our totals against those of PyTorch's own reader."""

from __future__ import annotations

import lzma
import pickle
import re
from pathlib import Path

import pytest

from snapana.analyses.overview import overview
from snapana.cli import main
from tests.conftest import SAMPLES, load_sample

viz = pytest.importorskip("torch.cuda._memory_viz", reason="torch is not installed (pip install 'snapana[peer]')")


@pytest.mark.parametrize(
    "name", ["train_adam", "oom_train", "graphs", "expandable", "streams", "frag_basic", "hf_lora"]
)
def test_totals_are_those_of_segsum(name: str) -> None:
    """Its figures are printed rounded, and its ``total_allocated`` is requested bytes of allocated blocks."""
    text = viz.segsum(pickle.loads(lzma.decompress((SAMPLES / f"{name}.pickle.xz").read_bytes())))
    said = dict(re.findall(r"^(segments|total_\w+): (\S+)", text, re.MULTILINE))
    snapshot = load_sample(name)
    end = overview(snapshot).devices[0].end
    live = snapshot.replay[0].live(len(snapshot.events) - 1)
    assert said["segments"] == str(len(snapshot.replay[0].layout(len(snapshot.events) - 1).segments))
    assert said["total_reserved"] == repr(viz.Bytes(end.reserved))
    assert said["total_allocated"] == repr(viz.Bytes(int(live["requested"].sum())))


def test_a_redacted_file_opens_in_pytorchs_viewer(tmp_path: Path) -> None:
    clean = tmp_path / "clean.pickle"
    assert main(["convert", str(SAMPLES / "train_adam.pickle.xz"), str(clean), "--redact"]) == 0
    original = pickle.loads(lzma.decompress((SAMPLES / "train_adam.pickle.xz").read_bytes()))
    document = pickle.loads(clean.read_bytes())
    assert viz.segsum(document) == viz.segsum(original)
    page = viz.trace_plot(document)
    assert len(page) > 10_000
    assert viz.trace(document) == viz.trace(original)


def test_the_recorders_stand_in_has_the_real_signatures() -> None:
    import inspect

    import torch
    from torch.autograd.profiler import record_function
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from tests.recording.standin import Memory

    for name in ("_record_memory_history", "_snapshot", "get_per_process_memory_fraction"):
        real = inspect.signature(getattr(torch.cuda.memory, name)).parameters
        ours = dict(inspect.signature(getattr(Memory, name)).parameters)
        ours.pop("self")
        assert [(one.name, one.kind, one.default) for one in real.values()] == [
            (one.name, one.kind, one.default) for one in ours.values()
        ], name
    assert list(inspect.signature(record_function.__init__).parameters) == ["self", "name", "args"]
    assert list(inspect.signature(register_optimizer_step_post_hook).parameters) == ["hook"]
    for name in ("memory_allocated", "max_memory_allocated", "max_memory_reserved", "mem_get_info"):
        assert list(inspect.signature(getattr(torch.cuda, name)).parameters) == ["device"]
    for name in ("is_available", "is_initialized", "device_count"):
        assert not inspect.signature(getattr(torch.cuda, name)).parameters
