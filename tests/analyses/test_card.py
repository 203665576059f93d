"""The card, part by part."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapana.analyses.card import card_use
from snapana.analyses.categories import Categories, categories_at, categorise
from snapana.analyses.failure import Facts
from snapana.analyses.fragmentation import fragmentation
from snapana.analyses.oom import out_of_memory
from snapana.message import find_messages
from snapana.snapshot.model import Snapshot
from tests.builders import History, histories
from tests.conftest import load_sample, truth_of

FAILURES = ["oom_train", "llm_oom", "stranded_pool", "in_pool", "other_stream", "other_process", "outside_allocator"]


def live_at(snapshot: Snapshot, event: int) -> Categories:
    return categories_at(snapshot, 0, event, categorise(snapshot, 0))


def live_of(name: str, event: int) -> Categories:
    return live_at(load_sample(name), event)


@pytest.mark.parametrize("name", FAILURES)
def test_parts_sum_to_the_card(name: str) -> None:
    truth = truth_of(name)
    facts = Facts(card=truth["total_memory"], messages=tuple(find_messages(truth["oom_message"])))
    (failure,) = out_of_memory(load_sample(name), 0, facts)
    assert failure.cache is not None
    use = card_use(failure.cache, live_of(name, failure.event), facts, failure)
    assert use.capacity == truth["total_memory"]
    assert sum(part.bytes or 0 for part in use.parts) == use.capacity
    by_key = {part.key: part.bytes for part in use.parts}
    assert by_key["driver_free"] == truth["observer"][3]
    assert None not in by_key.values()


def test_stranded_memory_has_parts_of_its_own() -> None:
    for name, key, size in (
        ("stranded_pool", "pool_held", 3 * 2**29),
        ("other_stream", "other_streams", 1_379_926_016),
    ):
        (failure,) = out_of_memory(load_sample(name), 0)
        assert failure.cache is not None
        use = card_use(failure.cache, live_of(name, failure.event), Facts(), failure)
        assert {part.key: part.bytes for part in use.parts}[key] == size


def test_what_is_not_known_has_no_bytes_but_a_hint() -> None:
    (failure,) = out_of_memory(load_sample("oom_train"), 0)
    assert failure.cache is not None
    use = card_use(failure.cache, live_of("oom_train", failure.event), Facts(), failure)
    (unknown,) = [part for part in use.parts if part.bytes is None]
    assert "--message" in unknown.hint


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.data())
def test_parts_sum_to_what_is_reserved(history: History, data: st.DataObject) -> None:
    if not history.events:
        return
    snapshot = history.snapshot()
    event = data.draw(st.integers(-1, len(history.events) - 1))
    use = card_use(fragmentation(snapshot, 0, event), live_at(snapshot, event), Facts())
    assert sum(part.bytes or 0 for part in use.parts) == use.reserved
    assert all(part.bytes is None or part.bytes > 0 for part in use.parts)
