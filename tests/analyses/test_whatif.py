"""Other settings, held against recordings of the same requests under those settings."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from snapana.allocator.driver import Downwards, Observed, Upwards
from snapana.allocator.settings import AllocatorSettings, parse_conf
from snapana.analyses.failure import Facts
from snapana.analyses.oom import out_of_memory
from snapana.analyses.requests import changed, known_limit, limit_is_guess, turning_point
from snapana.analyses.steps import steps
from snapana.analyses.whatif import (
    briefly,
    fitting,
    packed,
    reproduce,
    simulate,
    smallest_capacity,
    what_if,
    with_preallocation,
    workload,
    worth_trying,
)
from snapana.errors import SnapanaError
from tests.builders import History, histories
from tests.conftest import load_sample

MIB = 2**20
GIB = 2**30
FRAG_LIMIT = int(3.8 * GIB)
# Without a limit, and from an empty allocator.
WHOLE = ["frag_basic", "train_adam", "leak_hook", "expandable", "round_list", "streams", "train_empty_cache"]


@pytest.mark.parametrize("name", [*WHOLE, "oom_train", "llm_oom", "frag_3.8", "split64"])
def test_recorded_settings_are_reproduced(name: str) -> None:
    snapshot = load_sample(name)
    limit = 4 * GIB if name == "split64" else known_limit(snapshot, 0, Facts())
    found = reproduce(snapshot, 0, workload(snapshot, 0), limit)
    assert found.allocations > 70
    assert (found.mismatches, found.peak_reserved_error) == (0, 0)
    assert found.addresses in {0, None}


@pytest.mark.parametrize(("name", "limit"), [("split64", 4 * GIB), ("round_list", None), ("frag_basic", None)])
def test_the_driver_is_guessed_well_enough(name: str, limit: int | None) -> None:
    snapshot = load_sample(name)
    run = simulate(workload(snapshot, 0), snapshot.settings, limit)
    assert run.peak_reserved == int(snapshot.replay[0].curves["reserved"].max())
    assert run.low <= run.peak_reserved <= run.high


def test_a_limit_that_the_file_does_not_tell_is_asked_for() -> None:
    found = what_if(load_sample("split64"), 0)
    assert found.reproduction.mismatches > 0
    assert any("--capacity" in note for note in found.notes)


def test_what_failed_by_fragmentation_fits_into_expandable_segments() -> None:
    """Both were recorded: under this limit the one failed at allocation 1,661, the other went on."""
    snapshot = load_sample("frag_3.8")
    found = what_if(snapshot, 0, ["expandable_segments:True"], limit=FRAG_LIMIT)
    recorded, expanded = found.runs
    assert (recorded.failed_at, recorded.failed_again) == (None, 1)
    assert (expanded.failed_at, expanded.failed_again) == (None, 0)
    assert found.failures == 1
    assert recorded.peak_reserved == int(snapshot.replay[0].curves["reserved"].max())


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:512"])
def test_the_language_model_would_have_passed_its_batch(conf: str) -> None:
    snapshot = load_sample("llm_oom")
    (failure,) = out_of_memory(snapshot, 0, Facts(limit=149_157_838_848))
    fits = fitting(snapshot, failure)
    assert fits is not None
    assert fits(conf) is True
    assert any(conf in change.what and change.enough for change in failure.changes)


def test_a_limit_stops_the_run_where_it_would_have_failed() -> None:
    history = History()
    for _ in range(8):
        history.alloc(30 * MIB)
    run = simulate(workload(history.snapshot(), 0), AllocatorSettings(), 130 * MIB)
    assert (run.failed_at, run.failed_bytes) == (4, 30 * MIB)
    assert run.peak_reserved == 120 * MIB


def test_smallest_capacity_holds_and_less_does_not() -> None:
    work = workload(load_sample("frag_basic"), 0)
    plain = AllocatorSettings()
    least = smallest_capacity(work, plain)
    assert simulate(work, plain, least).failed_at is None
    assert simulate(work, plain, least - 2 * MIB).failed_at is not None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_any_history_is_reproduced_and_bounded(history: History) -> None:
    if not history.events:
        return
    snapshot = history.snapshot()
    work = workload(snapshot, 0)
    curves = snapshot.replay[0].curves
    for conf in ("", "expandable_segments:True", "max_split_size_mb:20"):
        run = simulate(work, parse_conf(conf))
        assert run.failed_at is None
        assert run.low <= run.peak_reserved <= run.high
        assert run.peak_reserved >= run.peak_allocated
    assert reproduce(snapshot, 0, work, history.sim.limit).mismatches == 0
    bound = packed(snapshot, 0)
    assert bound is not None
    assert bound >= int(curves["active"].max())


@pytest.mark.parametrize("make", [Observed, Upwards, Downwards])
def test_drivers_never_give_an_address_twice(make: type) -> None:
    driver = make()
    held: dict[int, int] = {}
    for number in range(400):
        size = (2, 20, 34, 66, 128)[number % 5] * MIB
        addr = driver.place(size)
        assert all(addr + size <= other or other + length <= addr for other, length in held.items())
        held[addr] = size
        if number % 3 == 2:
            gone = sorted(held)[number % len(held)]
            driver.release(gone, held.pop(gone))


def test_what_experts_do_by_hand() -> None:
    snapshot = load_sample("train_adam")
    work = workload(snapshot, 0)
    plain = simulate(work, snapshot.settings)
    emptied = simulate(changed(snapshot, 0, "each-step", None)(work), snapshot.settings)
    assert emptied.freed > plain.freed == 0
    assert emptied.segments > plain.segments
    one = simulate(with_preallocation(work, 2 * GIB), snapshot.settings)
    assert one.segments < plain.segments
    with pytest.raises(SnapanaError, match="no event"):
        changed(snapshot, 0, "99999999", None)


def test_only_what_can_matter_is_tried() -> None:
    history = History()
    history.free(history.alloc(100_000))
    work = workload(history.snapshot(), 0)
    assert worth_trying(work, None) == ["expandable_segments:True"]
    assert "garbage_collection_threshold:0.8" in worth_trying(work, GIB)


def test_frame_and_notes() -> None:
    found = what_if(load_sample("train_late"), 0, ["expandable_segments:True"])
    frame = found.frame
    assert frame["conf"].tolist()[1] == "expandable_segments:True"
    assert any("began late" in note for note in found.notes)


def test_nothing_recorded_is_said() -> None:
    with pytest.raises(SnapanaError, match="nothing to run again"):
        what_if(load_sample("no_history"), 0)


def test_what_was_recorded_stays_beside_what_is_changed() -> None:
    snapshot = load_sample("train_adam")
    found = what_if(snapshot, 0, change=changed(snapshot, 0, None, 2 * GIB))
    recorded, other = found.runs
    assert recorded.peak_reserved == found.peak_reserved < 2 * GIB
    assert other.peak_reserved >= 2 * GIB
    assert (recorded.conf, other.conf) == ("", "")
    assert other.segments < recorded.segments
    assert changed(snapshot, 0, None, None) is None


def test_a_setting_for_a_phase() -> None:
    snapshot = load_sample("frag_basic")
    last = len(snapshot.replay[0].events)
    conf = ["expandable_segments:True"]
    never, half, always = (what_if(snapshot, 0, conf, until=event).runs[1] for event in (0, last // 2, last))
    assert never.peak_reserved == what_if(snapshot, 0).peak_reserved
    assert always == what_if(snapshot, 0, conf).runs[1]
    assert always.peak_reserved != never.peak_reserved
    assert half.segments not in {never.segments, always.segments}
    annotated = load_sample("train_adam")
    first = int(steps(annotated, 0, "## forward ##").table["start_event"].iloc[0])
    assert turning_point(annotated, 0, "## forward ##") == first
    assert turning_point(annotated, 0, "17") == 17
    with pytest.raises(SnapanaError, match=r"usage\.at"):
        turning_point(annotated, 0, "99999999")


def test_what_was_cached_before_a_late_recording_is_in_the_range() -> None:
    found = what_if(load_sample("train_truncated"), 0)
    run = found.runs[0]
    assert run.peak_reserved < found.peak_reserved <= run.high
    assert any("began late" in note for note in found.notes)


def test_a_short_answer_for_the_report() -> None:
    found = briefly(load_sample("llm_oom"), 0, 149_157_838_848)
    assert found is not None
    again, runs = found
    assert again.mismatches == 0
    fits = {run.conf for run in runs if run.failed_at is None and not run.failed_again}
    assert {"expandable_segments:True", "max_split_size_mb:512"} <= fits
    assert "" not in fits
    assert briefly(load_sample("train_late"), 0, None) is None
    assert briefly(load_sample("no_history"), 0, None) is None


def test_a_recorded_failure_that_happens_again_is_told() -> None:
    found = what_if(load_sample("frag_3.8"), 0, ["", "expandable_segments:True"], limit=FRAG_LIMIT)
    again, fits = found.runs[1:]
    assert again.again_at is not None
    assert again.again_at[0] == 1661
    assert fits.again_at is None
    exact = what_if(load_sample("train_adam"), 0, [""], limit=500 * MIB)
    assert (exact.reproduction.mismatches, exact.reproduction.peak_reserved_error) == (0, 0)
    assert exact.runs[1].failed_at is not None
    assert limit_is_guess(load_sample("other_stream"), 0, Facts())
    assert not limit_is_guess(load_sample("other_stream"), 0, Facts(3 * GIB))
    assert not limit_is_guess(load_sample("record_oom"), 0, Facts())
    with pytest.raises(SnapanaError, match=r"usage\.step"):
        turning_point(load_sample("train_truncated"), 0, "## forward ##")
