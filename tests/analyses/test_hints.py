"""Hints: what a recording left open, with its own figures and code that runs."""

from __future__ import annotations

import pytest

from snapana.analyses.hints import hints
from snapana.analyses.overview import Overview, overview
from snapana.snapshot.model import InputInfo
from snapana.snapshot.normalise import normalise
from tests.builders import History
from tests.conftest import load_sample

MIB = 2**20


def codes(results: Overview) -> list[str]:
    return [hint.code for hint in hints(results)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train_adam", []),
        ("record_oom", []),
        ("record_leak", []),
        ("train_truncated", ["hint.ring"]),
        ("train_late", ["hint.late"]),
        ("train_no_ctx", ["hint.stacks"]),
        ("no_history", ["hint.history"]),
        ("leak_none_kv", ["hint.steps"]),
        ("oom_train", ["hint.card"]),
        ("llm_oom", ["hint.native", "hint.card"]),
    ],
)
def test_what_is_left_open(name: str, expected: list[str]) -> None:
    found = hints(overview(load_sample(name)))
    assert [hint.code for hint in found] == expected
    for hint in found:
        assert len(hint.snippet.splitlines()) <= 12
        compile(hint.snippet, hint.code, "exec")


def test_the_ring_is_measured_in_steps() -> None:
    history = History()
    history.alloc(64 * MIB, "weights")
    for number in range(40):
        for _ in range(50):
            history.free(history.alloc(MIB, "forward"))
        history.step(number)
    document = history.document(max_entries=400)
    (hint,) = hints(overview(normalise(document, InputInfo("ring.pickle", "snapshot", None, 40_000))))
    assert hint.code == "hint.ring"
    # Fifty allocations and both halves of their frees a step.
    assert hint.message.startswith(
        "150 events a step: the ring of 400 held 2.7 steps; max_entries=50_000 would hold 333"
    )
    assert hint.message.endswith("in a file of about 5 MiB.")
    assert "max_entries=50_000" in hint.snippet


def test_a_file_written_after_the_exception() -> None:
    history = History(limit=64 * MIB)
    blocks = [history.alloc(20 * MIB, "forward") for _ in range(3)]
    history.out_of_memory(32 * MIB)
    for addr in blocks[1:]:
        history.free(addr)
    found = hints(overview(history.snapshot()))
    (hint,) = [one for one in found if one.code == "hint.unwound"]
    assert "2 blocks (40.00 MiB) were freed" in hint.message
    assert "on_oom" in hint.snippet
