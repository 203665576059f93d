"""What waits for other streams, and what the loss holds."""

from __future__ import annotations

import pytest

from snapana.analyses.logits import logits
from snapana.analyses.waiting import waiting
from tests.builders import History
from tests.conftest import load_sample, truth_of
from tests.test_truth import highest

MIB = 2**20


def test_waiting_blocks_of_a_recording() -> None:
    found = waiting(load_sample("stream_trace"), 0)
    assert found.bytes == int(found.sites["bytes"].sum()) == 505_675_776
    assert found.peak_allocated == highest(truth_of("stream_trace"), "allocated")
    assert found.peak_active == max(row["active_bytes.all.peak"] for row in truth_of("stream_trace")["steps"])


def test_a_free_that_completes_at_once_does_not_wait() -> None:
    history = History()
    history.free(history.alloc(64 * MIB))
    late = history.alloc(MIB, "late")
    history.free_later(late)
    history.alloc(2 * MIB)
    history.free(history.alloc(32 * MIB))
    history.complete(late)
    found = waiting(history.snapshot(), 0)
    assert found.bytes == MIB
    assert found.sites["site"].str.endswith(" late").all()
    assert waiting(load_sample("train_adam"), 0).bytes == 0


@pytest.mark.parametrize(("name", "blocks", "share"), [("llm_oom", 2, 0.07), ("train_all_stacks", 3, 0.34)])
def test_blocks_of_the_loss(name: str, blocks: int, share: float) -> None:
    snapshot = load_sample(name)
    replay = snapshot.replay[0]
    found = logits(snapshot, 0, replay.peak_event())
    assert found is not None
    assert found.blocks == blocks
    assert found.bytes / int(replay.curves["allocated"].max()) == pytest.approx(share, abs=0.01)
    assert int(found.sites["bytes"].sum()) == found.bytes


def test_without_a_loss_there_are_none() -> None:
    snapshot = load_sample("frag_3.8")
    assert logits(snapshot, 0, snapshot.replay[0].peak_event()) is None
