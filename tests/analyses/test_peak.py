"""Attribution of the peak: it closes, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snapana.analyses.peak import instant, peak
from snapana.analyses.sites import by_site
from tests.builders import History, histories
from tests.conftest import load_sample

MIB = 2**20
SAMPLES = ["train_adam", "oom_train", "llm_oom", "graphs", "expandable", "train_late", "train_truncated", "no_history"]


@pytest.mark.parametrize("name", SAMPLES)
def test_rows_sum_to_the_peak(name: str) -> None:
    found = peak(load_sample(name), 0)
    assert int(found.sites["bytes"].sum()) == found.allocated
    assert found.sites["bytes"].is_monotonic_decreasing


@pytest.mark.parametrize(
    ("name", "largest"),
    [
        ("oom_train", {"scenarios.py:66 forward": 2_685_403_136, "(no stack)": 570_425_344}),
        ("llm_oom", {"scenarios.py:68 forward": 72_491_728_896, "scenarios.py:622 llm_oom": 5_375_476_224}),
        ("train_late", {"(no stack)": 279_085_056 - 111_312_896, "(before the window)": 111_312_896}),
    ],
)
def test_sites_at_the_peak(name: str, largest: dict[str, int]) -> None:
    """Figures of an independent replay; it does not tell what is before the window from what has no stack."""
    sites = peak(load_sample(name), 0).sites.set_index("site")["bytes"]
    assert {site: int(sites[site]) for site in largest} == largest


def test_a_site_is_known_by_its_heaviest_stack() -> None:
    history = History()
    for size in (512, 4 * MIB):
        history.alloc(size, "embed")
    found = by_site(history.snapshot(), history.snapshot().replay[0].allocations)
    assert found["blocks"].tolist() == [2]
    assert found["bytes"].tolist() == [4 * MIB + 512]
    assert found["requested"].tolist() == [4 * MIB + 512]
    assert found["function"].tolist() == ["embed"]


def test_blocks_older_than_the_window_have_a_row_of_their_own() -> None:
    history = History(recording=False)
    history.alloc(3 * MIB)
    history.recording = True
    history.alloc(512, None)
    sites = peak(history.snapshot(), 0).sites.set_index("site")["bytes"].to_dict()
    assert sites == {"(before the window)": 3 * MIB, "(no stack)": 512}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(most=30), st.data())
def test_every_instant_closes(history: History, data: st.DataObject) -> None:
    if not history.events:
        return
    event = data.draw(st.integers(-1, len(history.events) - 1))
    found = instant(history.snapshot(), 0, event)
    assert int(found.sites["bytes"].sum()) == found.allocated
    if event in history.truth:
        assert (found.allocated, found.active, found.requested, found.reserved) == history.truth[event]
