"""Plans for other batch sizes, held against recordings at those batch sizes."""

from __future__ import annotations

import numpy as np
import pytest

from snapana.analyses.phases import checkpoints
from snapana.analyses.plan import Plan, plan, with_accumulation
from snapana.analyses.scaling import guessed, measured
from snapana.analyses.whatif import MALLOC, workload
from snapana.errors import SnapanaError
from tests.conftest import load_sample, truth_of
from tests.test_truth import highest

GIB = 2**30


def planned(name: str, batch: int, other: str | None = None, other_batch: int | None = None, **more: object) -> Plan:
    second = None if other is None else load_sample(other)
    return plan(load_sample(name), 0, batch, other=second, other_batch=other_batch, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("pair", [("train_b4", 4, "train_b16", 16), ("train_b16", 16, "train_b4", 4)])
def test_two_recordings_predict_others_to_the_byte(pair: tuple[str, int, str, int]) -> None:
    found = planned(*pair, at=[32, 64])
    for point, name in zip(found.points, ("train_b32", "train_b64"), strict=True):
        truth = truth_of(name)
        assert (point.peak_allocated, point.peak_reserved) == (highest(truth, "allocated"), highest(truth, "reserved"))


def test_two_recordings_under_autocast() -> None:
    (point,) = planned("text_b6", 6, "text_b16", 16, at=[48]).points
    assert point.peak_allocated == highest(truth_of("text_b48"), "allocated")


def test_workspaces_of_convolutions_leave_a_range() -> None:
    (point,) = planned("conv_b6", 6, "conv_b16", 16, at=[48]).points
    real = highest(truth_of("conv_b48"), "allocated")
    assert point.low <= real <= point.high
    assert point.high - point.low > 0.02 * real
    assert point.peak_allocated == pytest.approx(real, rel=0.03)


@pytest.mark.parametrize(
    ("name", "batch", "others"),
    [
        ("train_adam", 8, {"train_b4": 4, "train_b16": 16, "train_b32": 32, "train_b64": 64}),
        ("text_b6", 6, {"text_b16": 16, "text_b48": 48}),
        ("text_b16", 16, {"text_b6": 6, "text_b48": 48}),
        ("conv_b6", 6, {"conv_b16": 16, "conv_b48": 48}),
    ],
)
def test_one_recording_comes_near(name: str, batch: int, others: dict[str, int]) -> None:
    found = planned(name, batch, at=list(others.values()))
    for point, (other, size) in zip(found.points, sorted(others.items(), key=lambda one: one[1]), strict=True):
        real = highest(truth_of(other), "allocated")
        assert point.micro_batch == size
        assert point.peak_allocated == pytest.approx(real, rel=0.03)
        assert point.low <= real <= point.high


@pytest.mark.parametrize(
    ("name", "batch", "effective", "real"),
    [
        ("train_adam", 8, 32, "train_accum4x8"),
        ("text_b6", 6, 24, "text_b6_accum4"),
        ("conv_b16", 16, 48, "conv_b16_accum3"),
    ],
)
def test_accumulation_keeps_the_gradients(name: str, batch: int, effective: int, real: str) -> None:
    recipe = planned(name, batch, effective_batch=effective).recipe
    assert recipe is not None
    assert (recipe.micro_batch, recipe.accumulation_steps) == (batch, effective // batch)
    assert recipe.peak_allocated == pytest.approx(highest(truth_of(real), "allocated"), rel=0.005)
    assert recipe.low <= highest(truth_of(real), "allocated") <= recipe.high


def test_accumulation_adds_each_gradient_once_a_step() -> None:
    snapshot = load_sample("train_adam")
    work = workload(snapshot, 0)
    changed, copied = with_accumulation(snapshot, 0, work)
    assert sum(work.requested[number] for number in copied.tolist()) == 4 * truth_of("train_adam")["grad_bytes"]
    born = [number for what, number, _ in changed.operations if what == MALLOC]
    assert len(set(born)) == len(born) == len(changed.requested)
    # What accumulates already is left alone.
    again = load_sample("train_b4")
    assert len(with_accumulation(again, 0, workload(again, 0))[1]) == 4 * 77


def test_the_largest_that_fits() -> None:
    found = planned("train_b4", 4, "train_b16", 16, at=[64], capacity=4 * GIB)
    assert found.largest is not None
    (below,) = planned("train_b4", 4, "train_b16", 16, at=[found.largest]).points
    (above,) = planned("train_b4", 4, "train_b16", 16, at=[found.largest + 1]).points
    assert below.peak_reserved <= 0.95 * 4 * GIB < above.peak_reserved
    assert found.recipe is not None
    assert (found.recipe.micro_batch, found.recipe.accumulation_steps) == (32, 2)
    assert found.recipe.reserved_low <= 0.95 * 4 * GIB


def test_nothing_fits() -> None:
    found = planned("train_b4", 4, capacity=256 * 2**20)
    assert (found.largest, found.recipe) == (0, None)


def test_checkpointing_is_shown() -> None:
    found = planned("train_adam", 8, "train_checkpoint", 8, at=[8], capacity=2 * GIB)
    real = highest(truth_of("train_checkpoint"), "allocated")
    assert found.checkpointing[0].peak_allocated == pytest.approx(real, rel=0.01)
    assert found.recorded[1].peak_allocated == real
    assert found.largest is not None
    assert found.largest_checkpointing is not None
    assert found.largest_checkpointing > found.largest
    assert checkpoints(load_sample("train_checkpoint"))
    assert any("checkpointing is in use" in line for line in planned("train_checkpoint", 8).assumptions)


def test_sites_close() -> None:
    snapshot = load_sample("train_b16")
    found = planned("train_b4", 4, "train_b16", 16)
    requested = int(snapshot.replay[0].curves["requested"].iloc[snapshot.replay[0].peak_event() + 1])
    assert found.sites["requested_bytes"].sum() == requested
    assert (found.sites["constant_bytes"] + 16 * found.sites["per_sample_bytes"]).sum() == pytest.approx(requested)
    steady = found.sites[found.sites["category"].isin(["parameters", "optimizer"])]
    assert steady["per_sample_bytes"].abs().max() == 0
    assert (
        steady["requested_bytes"].sum()
        == truth_of("train_b16")["param_bytes"] + 2 * truth_of("train_b16")["grad_bytes"]
    )


def test_bounds_hold_each_other() -> None:
    for scaling in (
        guessed(load_sample("conv_b16"), 0, 16),
        measured(load_sample("conv_b16"), 16, load_sample("conv_b6"), 6, 0),
    ):
        for batch in (1, 6, 16, 100):
            least, best, most = (scaling.at(batch, bound) for bound in ("least", "best", "most"))
            assert (np.minimum(least, most) <= most).all()
            if batch != 16:
                assert (least <= most).all()
            else:
                assert (least == most).all()
                assert (best == np.maximum(scaling.requested, 1)).all()


def test_what_cannot_be_planned() -> None:
    with pytest.raises(SnapanaError, match=r"plan\.unlike"):
        planned("train_b4", 4, "hf_lora", 16)
    with pytest.raises(SnapanaError, match=r"usage\.plan"):
        planned("train_b4", 4, "train_b4", 4)
    with pytest.raises(SnapanaError, match=r"usage\.plan"):
        planned("no_history", 4)
    with pytest.raises(SnapanaError, match=r"plan\.unlike"):
        planned("train_checkpoint", 8, "train_b16", 16)


def test_the_frame_has_the_points() -> None:
    found = planned("train_b4", 4)
    assert found.frame["micro_batch"].tolist() == [2, 4, 8, 16]
    assert (found.frame["low"] <= found.frame["peak_allocated"]).all()


@pytest.mark.parametrize("name", ["oom_train", "other_process", "in_pool", "record_oom", "llm_oom", "capacity"])
def test_requests_that_failed_are_part_of_what_is_needed(name: str) -> None:
    found = planned(name, 8, at=[4, 8, 16])
    (recorded,) = found.recorded
    assert recorded.needed > recorded.peak_allocated
    assert recorded.predicted == pytest.approx(recorded.needed, rel=0.01)
    for point in found.points:
        assert 0 <= point.low <= point.peak_allocated <= point.high <= 2.5 * point.peak_allocated
        assert point.reserved_low <= point.peak_reserved <= point.reserved_high
