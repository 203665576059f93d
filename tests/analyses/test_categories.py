"""What memory is for, against what PyTorch said of the same run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from snapana.analyses.categories import categories_at, categorise, kept_gradients
from snapana.analyses.choices import GROUPS
from snapana.analyses.groups import group_at, stacked
from snapana.analyses.instants import find_instant
from snapana.analyses.overview import overview
from snapana.analyses.rules import CATEGORIES
from tests.builders import Frame, History, histories
from tests.conftest import load_sample, truth_of

MIB = 2**20

# Buffers of modules count as parameters.
BUFFERS = {"hf_lora": 128}


@pytest.mark.parametrize(
    "name",
    [
        "train_adam",
        "train_late",
        "train_truncated",
        "train_no_ctx",
        "train_state_ctx",
        "train_all_stacks",
        "hf_lora",
        "llm_oom",
    ],
)
def test_recordings(name: str) -> None:
    """Whatever was recorded of it: late, cut, without stacks, with C++ stacks."""
    snapshot, truth = load_sample(name), truth_of(name)
    event = find_instant(snapshot, 0, "optimizer").event
    found = categories_at(snapshot, 0, event, categorise(snapshot, 0))
    assert found.requested["parameters"] == truth["param_bytes"] + BUFFERS.get(name, 0)
    assert found.requested["gradients"] == truth["grad_bytes"]
    assert found.requested["optimizer"] == truth["optimizer_bytes"]
    assert found.total == int(snapshot.replay[0].curves["allocated"].iloc[event + 1])


def test_workspaces_of_cublas_are_their_own() -> None:
    """32 MiB and 1 MiB under the first linear layer, 32 MiB of the backward thread."""
    snapshot = load_sample("train_adam")
    event = find_instant(snapshot, 0, "optimizer").event
    assert categories_at(snapshot, 0, event, categorise(snapshot, 0)).requested["workspace"] == 65 * MIB


def test_most_of_the_peak_of_training_is_told() -> None:
    for name in ("train_adam", "hf_lora", "llm_oom", "graphs", "cudagraph_trees", "ddp_rank2"):
        snapshot = load_sample(name)
        found = categories_at(snapshot, 0, snapshot.replay[0].peak_event(), categorise(snapshot, 0))
        assert found.bytes["other"] == 0, name
        assert found.bytes["activations"] > found.bytes["inputs"], name


def test_buckets_of_data_parallel_are_gradients() -> None:
    snapshot = load_sample("ddp_rank2")
    event = find_instant(snapshot, 0, "optimizer").event
    found = categories_at(snapshot, 0, event, categorise(snapshot, 0)).requested
    assert found["gradients"] == 2 * found["parameters"]


def test_without_a_forward_pass_nothing_is_guessed() -> None:
    snapshot = load_sample("frag_basic")
    found = categories_at(snapshot, 0, snapshot.replay[0].peak_event(), categorise(snapshot, 0))
    assert found.bytes["other"] == found.total


class Training(History):
    """Recorded with the stacks that PyTorch's own code has."""

    stack: tuple[tuple[str, str], ...] = ()

    def _capture(self, site: str | None) -> list[Frame] | None:
        if site is None:
            return []
        inner = [self._frame(name, f"/venv/lib/python3.12/site-packages/{path}", 7) for name, path in STACKS[site]]
        line = 10 + sum(map(ord, site)) % 1000
        return [*inner, self._frame(site, "/home/user/train.py", line)]


STACKS: dict[str, list[tuple[str, str]]] = {
    "build": [("_apply", "torch/nn/modules/module.py"), ("cuda", "torch/nn/modules/module.py")],
    "batch": [],
    "layer": [("forward", "torch/nn/modules/linear.py"), ("_call_impl", "torch/nn/modules/module.py")],
    "state": [("_init_group", "torch/optim/adam.py"), ("step", "torch/optim/adam.py")],
    "clear": [("zero_grad", "torch/optim/optimizer.py")],
    "free": [],
}


def train(*, clear_after: bool) -> Training:
    history = Training()
    for size in (3, 5):
        history.alloc(size * MIB, "build")
    gradients: list[int] = []
    for number in range(3):
        fed = history.alloc(MIB, "batch")
        activations = [history.alloc(size * MIB, "layer") for size in (20, 30)]
        if not clear_after:
            for addr in gradients:
                history.free(addr, "clear")
            gradients.clear()
        for addr, size in zip(reversed(activations), (5, 3), strict=True):
            gradients.append(history.alloc(size * MIB, None))
            history.free(addr)
        with history.annotate("Optimizer.step#Adam.step"):
            if number == 0:
                for size in (3, 3, 5, 5):
                    history.alloc(size * MIB, "state")
        if clear_after:
            for addr in gradients:
                history.free(addr, "clear")
            gradients.clear()
        history.free(fed)
    return history


@pytest.mark.parametrize("clear_after", [True, False])
def test_a_small_training(clear_after: bool) -> None:
    snapshot = train(clear_after=clear_after).snapshot()
    codes = categorise(snapshot, 0)
    lives = snapshot.replay[0].allocations
    sums = {name: int(lives["requested"][codes == code].sum()) // MIB for code, name in enumerate(CATEGORIES)}
    assert sums == {
        "parameters": 8,
        "gradients": 24,
        "optimizer": 16,
        "activations": 150,
        "workspace": 0,
        "inputs": 3,
        "other": 0,
    }
    peak = snapshot.replay[0].peak_event()
    assert kept_gradients(snapshot, 0, peak, codes) == (0 if clear_after else 8 * MIB)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_every_grouping_closes(history: History) -> None:
    if not history.events:
        return
    snapshot = history.snapshot()
    codes = categorise(snapshot, 0)
    replay = snapshot.replay[0]
    (device,) = overview(snapshot).devices
    for by in GROUPS:
        assert int(group_at(snapshot, device, by)["bytes"].sum()) == int(replay.curves["allocated"].max())
    events = np.arange(-1, len(history.events))
    bands = stacked(replay.allocations, codes, len(CATEGORIES), events)
    assert bands.sum(axis=0).tolist() == replay.curves["allocated"].tolist()
