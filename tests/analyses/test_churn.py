"""Traffic with the driver, who caused it, and settings."""

from __future__ import annotations

import pytest

from snapana.allocator.settings import AllocatorSettings
from snapana.analyses.churn import churn
from snapana.analyses.settings import check_settings
from snapana.analyses.steps import steps
from tests.builders import History
from tests.conftest import load_sample, truth_of

MIB = 2**20


@pytest.mark.parametrize("name", ["frag_3.8", "llm_oom", "oom_train", "retried", "train_adam", "stranded_pool"])
def test_retries_are_those_that_pytorch_counted(name: str) -> None:
    """``num_alloc_retries`` counts the fatal ones as well."""
    snapshot, truth = load_sample(name), truth_of(name)
    last = truth["steps"][-1] if truth.get("steps") else {}
    counted = truth.get("retries", last.get("num_alloc_retries"))
    fatal = truth.get("ooms", last.get("num_ooms"))
    assert churn(snapshot, 0, steps(snapshot, 0)).retries == counted - fatal


def test_settings_that_release_eagerly_hide_retries() -> None:
    found = churn(load_sample("split64"), 0, steps(load_sample("split64"), 0))
    assert found.retries is None
    assert found.releases is not None


def test_each_step_has_its_traffic() -> None:
    snapshot = load_sample("train_empty_cache")
    found = churn(snapshot, 0, steps(snapshot, 0))
    steady = found.steps.iloc[2:-1]
    assert steady["allocs"].tolist() == [29] * len(steady)
    assert (steady["allocated_bytes"] == 528 * MIB).all()
    assert int(found.triggers["allocs"].sum()) == found.segment_allocs
    assert int(found.triggers["bytes"].sum()) == found.allocated_bytes
    (call,) = found.emptied.itertuples()
    assert (call.site, call.calls, call.per_step) == ("scenarios.py:157 one", 6, 1.0)


def test_release_within_an_allocation_is_no_call() -> None:
    history = History(limit=60 * MIB)
    history.free(history.alloc(40 * MIB))
    history.alloc(50 * MIB, "large")
    found = churn(history.snapshot(), 0, steps(history.snapshot(), 0))
    assert (found.empty_cache_calls, found.retries, found.released_bytes) == (0, 1, 40 * MIB)


def checks(settings: AllocatorSettings, *sizes: int) -> list[tuple[str, str]]:
    history = History(settings)
    for size in sizes:
        history.alloc(size)
    snapshot = history.snapshot()
    return [(check.kind, check.message.split()[0]) for check in check_settings(snapshot, 0)]


@pytest.mark.parametrize(
    ("settings", "sizes", "want"),
    [
        (AllocatorSettings(), [30 * MIB], []),
        (AllocatorSettings(expandable_segments=True), [30 * MIB], []),
        (
            AllocatorSettings(expandable_segments=True, max_split_size=64 * MIB),
            [30 * MIB],
            [("conflict", "expandable_segments")],
        ),
        (AllocatorSettings(max_split_size=64 * MIB), [30 * MIB], [("no_effect", "max_split_size_mb")]),
        (AllocatorSettings(max_split_size=64 * MIB), [90 * MIB], []),
        (
            AllocatorSettings(roundup_power2_divisions=(4,) * 16),
            [32 * MIB],
            [("no_effect", "roundup_power2_divisions")],
        ),
        (AllocatorSettings(roundup_power2_divisions=(4,) * 16), [33 * MIB], []),
        (
            AllocatorSettings(garbage_collection_threshold=0.6),
            [30 * MIB],
            [("no_effect", "garbage_collection_threshold")],
        ),
    ],
)
def test_settings_that_fight_or_do_nothing(
    settings: AllocatorSettings, sizes: list[int], want: list[tuple[str, str]]
) -> None:
    assert checks(settings, *sizes) == want
