"""What is said of real recordings, and how severe it is."""

from __future__ import annotations

from functools import cache

import pytest

from snapana.allocator.settings import AllocatorSettings
from snapana.analyses.failure import Facts
from snapana.analyses.overview import overview
from snapana.findings import Finding, judge
from snapana.message import find_messages
from tests.builders import History
from tests.conftest import load_sample, truth_of

MIB, GIB = 2**20, 2**30

# What is above info.
FOUND = {
    "capacity": [("high", "oom.capacity")],
    "cudagraph_trees": [],
    "ddp_rank2": [("high", "leak.growth"), ("low", "peak.logits"), ("low", "streams.pending_free")],
    "expandable": [],
    "frag_3.8": [("high", "oom.fragmentation"), ("low", "churn.retries"), ("low", "fragmentation.pins")],
    "frag_basic": [],
    "graphs": [],
    "hf_lora": [],
    "in_pool": [("high", "oom.limit")],
    "leak_hook": [("high", "leak.growth")],
    "leak_none_kv": [],
    "leak_small": [("medium", "leak.growth")],
    "llm_oom": [
        ("high", "oom.fragmentation"),
        ("low", "peak.activations_dominate"),
        ("low", "churn.retries"),
        ("low", "fragmentation.pins"),
        ("low", "peak.logits"),
    ],
    "no_history": [("medium", "window.no_history")],
    "oom_train": [("high", "oom.limit"), ("low", "peak.activations_dominate"), ("low", "churn.retries")],
    "other_stream": [("high", "oom.stranded_pool"), ("medium", "fragmentation.pins")],
    "retried": [("medium", "oom.limit"), ("low", "churn.retries")],
    "stranded_pool": [("high", "oom.stranded_pool")],
    "stream_trace": [("medium", "streams.pending_free")],
    "streams": [],
    "train_adam": [],
    "train_empty_cache": [("medium", "churn.empty_cache")],
    "train_late": [("low", "window.late_start")],
    "train_no_ctx": [],
    "train_state_ctx": [],
    "train_truncated": [("low", "window.truncated")],
}


@cache
def findings_of(name: str) -> list[Finding]:
    return judge(overview(load_sample(name)))


@pytest.mark.parametrize("name", FOUND)
def test_recordings(name: str) -> None:
    found = [(one.severity, one.code) for one in findings_of(name) if one.severity != "info"]
    assert found == FOUND[name]


def one(code: str, name: str) -> Finding:
    (found,) = [finding for finding in findings_of(name) if finding.code == code]
    return found


def test_the_fragmented_card_in_words() -> None:
    found = one("oom.fragmentation", "llm_oom")
    for figure in ("4.39 GiB", "LogSoftmaxBackward0", "125.06 GiB allocated", "12.43 GiB reserved but unallocated"):
        assert figure in found.message
    assert found.advice.startswith("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
    assert "1.56 GiB at a time" in found.advice


def test_the_emptied_cache_in_words() -> None:
    found = one("churn.empty_cache", "train_empty_cache")
    assert "scenarios.py:157 one" in found.message
    assert "6 times, once a step" in found.message
    assert found.evidence["segments_per_step"] == 29


def test_waiting_frees_in_words() -> None:
    found = one("streams.pending_free", "stream_trace")
    assert "Peak active is 574.25 MiB, peak allocated 112.00 MiB" in found.message


def test_the_message_changes_the_verdict() -> None:
    facts = Facts(messages=tuple(find_messages(truth_of("other_process")["oom_message"])))
    first = judge(overview(load_sample("other_process"), facts=facts))[0]
    assert first.code == "oom.other_processes"
    assert "process 598" in first.advice


def scattered(settings: AllocatorSettings) -> History:
    """Many segments, each half empty behind a small survivor."""
    history = History(settings)
    for _ in range(20):
        large = [history.alloc(300 * MIB, "large") for _ in range(2)]
        for addr in large:
            history.free(addr)
        history.alloc(160 * MIB, "kept")
        history.empty_cache()
    return history


def advice_of(history: History, code: str) -> str:
    (found,) = [finding for finding in judge(overview(history.snapshot())) if finding.code == code]
    return found.advice


def test_advice_looks_at_the_settings() -> None:
    assert "expandable_segments:True" in advice_of(scattered(AllocatorSettings()), "fragmentation.low_utilization")
    split = AllocatorSettings(conf="max_split_size_mb:400", max_split_size=400 * MIB)
    assert "Drop max_split_size_mb" in advice_of(scattered(split), "fragmentation.low_utilization")


def test_rounding_that_wastes() -> None:
    history = History(AllocatorSettings(conf="roundup_power2_divisions:2", roundup_power2_divisions=(2,) * 16))
    for _ in range(10):
        history.alloc(65 * MIB)
    assert "roundup_power2_divisions" in advice_of(history, "fragmentation.rounding")


def test_ranked_by_severity_then_size() -> None:
    order = ["high", "medium", "low", "info"]
    for name in FOUND:
        ranks = [order.index(finding.severity) for finding in findings_of(name)]
        assert ranks == sorted(ranks)


def test_varying_peaks_in_words() -> None:
    found = one("growth.varying_peaks", "llm_oom")
    assert found.severity == "info"
    assert "Not a leak: step ends are flat at 10.08 GiB, step peaks vary 2.4x" in found.message
    assert "The step that failed asked for the largest blocks so far" in found.message


def test_a_retained_graph_is_one_finding() -> None:
    history = History()
    for _ in range(10):
        for size, site in ((4, "embed"), (3, "attend"), (2, "mlp")):
            history.alloc(size * MIB, site)
        history.step()
    found = [finding for finding in judge(overview(history.snapshot())) if finding.code == "leak.growth"]
    assert len(found) == 1
    assert found[0].evidence["bytes_per_step"] == 9 * MIB
    assert "elsewhere" in found[0].advice


def test_a_message_of_another_card_changes_nothing() -> None:
    text = truth_of("oom_train")["oom_message"].replace("GPU 0 has", "GPU 1 has")
    facts = Facts(messages=tuple(find_messages(text)))
    (device,) = overview(load_sample("oom_train"), facts=facts).devices
    assert device.space is not None
    assert device.space.card.capacity is None


def test_a_card_that_is_given_too_small_still_closes() -> None:
    (device,) = overview(load_sample("oom_train"), facts=Facts(card=6 * GIB)).devices
    assert device.space is not None
    card = device.space.card
    assert sum(part.bytes or 0 for part in card.parts) == card.capacity
    assert any("is less than what was on it" in reason for reason in device.oom[0].reasons)


def test_findings_do_not_depend_on_the_instant() -> None:
    found = [
        [(one.code, one.bytes) for one in judge(overview(scattered(AllocatorSettings()).snapshot(), at=at))]
        for at in (None, "5", "end")
    ]
    assert next(code for code, _ in found[0]) == "fragmentation.low_utilization"
    assert found[0][0] == found[1][0] == found[2][0]
