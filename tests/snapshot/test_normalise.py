"""Every generation of files becomes the same model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from snapana.analyses.overview import overview
from snapana.errors import SnapanaError
from snapana.snapshot.model import Snapshot
from tests.builders import GENERATIONS, History, generation, model
from tests.conftest import load_sample

MIB = 2**20

GUESSES = {
    "list": "memory_snapshot() list",
    "torch 2.0": "torch 1.13-2.0",
    "torch 2.1": "torch 2.0-2.1",
    "torch 2.2": "torch 2.2",
    "torch 2.4": "torch 2.4",
    "torch 2.5": "torch 2.5-2.7",
    "torch 2.8": "torch 2.8-2.9",
    "torch 2.10": "torch 2.10-2.11",
    "torch 2.12": "torch 2.12-2.13",
    "torch 2.14": "torch 2.14 or newer",
    "npu": "torch_npu",
    "xpu": "torch (XPU)",
    "c++": "torch 2.10-2.11",
    "unknown keys": "torch 2.10-2.11",
}


def history(*, pad: int = 0) -> History:
    made = History(pad=pad)
    kept = made.alloc(3 * MIB, "embed")
    made.free(made.alloc(700, "attend"))
    later = made.alloc(500, "mlp")
    with made.annotate("## forward ##"):
        made.alloc(2 * MIB, "mlp")
    made.free_later(later)
    made.alloc(100, "embed")
    assert kept
    return made


def figures(snapshot: Snapshot) -> dict[str, object]:
    replay = snapshot.replay[0]
    live = replay.live(len(replay.events) - 1)
    return {
        "end": replay.curves.iloc[-1][["allocated", "active", "requested", "reserved"]].tolist(),
        "blocks": sorted(
            zip(live["size"].tolist(), [snapshot.stacks.site(one).label for one in live["stack"]], strict=True)
        ),
        "mismatches": replay.coverage.mismatches,
    }


@pytest.mark.parametrize("name", GENERATIONS)
def test_generations_agree(name: str) -> None:
    want = figures(history().snapshot())
    made = history(pad=32 if name == "npu" else 0)
    if name == "npu":
        want = figures(made.snapshot())
    snapshot = model(generation(made.document(), name))
    assert figures(snapshot) == want
    assert snapshot.generation == GUESSES[name]


@pytest.mark.parametrize("name", [name for name in GENERATIONS if name != "list"])
def test_events_agree(name: str) -> None:
    whole, other = history().snapshot(), model(generation(history().document(), name))
    known = other.events[other.events["action"].isin(["alloc", "free_requested", "free_completed", "segment_alloc"])]
    assert known["size"].tolist() == whole.events["size"].tolist()
    assert known["action"].astype(str).tolist() == whole.events["action"].astype(str).tolist()
    assert other.replay[0].coverage.complete


@pytest.mark.parametrize("name", ["torch 2.4", "torch 2.5", "torch 2.14"])
def test_annotations_agree(name: str) -> None:
    whole, other = history().snapshot(), model(generation(history().document(), name))
    assert other.annotations.to_dict("list") == whole.annotations.to_dict("list")
    assert whole.annotations["name"].tolist() == ["## forward ##"]
    assert (whole.annotations["end_us"] > whole.annotations["start_us"]).all()


def test_addresses_above_the_sign_bit_stay_whole() -> None:
    found = model(generation(history().document(), "xpu"))
    assert int(found.segments["address"].min()) > 2**63
    negative = model(generation(history().document(), "c++"))
    assert (negative.segments["address"] > 2**63).all()


def test_orphaned_marks_are_kept() -> None:
    document = history().document()
    document["external_annotations"] = [
        {"name": "late", "stage": "END", "device": 0, "time_us": 5},
        {"name": "open", "stage": "START", "device": 0, "time_us": 6},
        {"name": "outer", "stage": "START", "device": 0, "time_us": 7},
        {"name": "outer", "stage": "START", "device": 0, "time_us": 8},
        {"name": "outer", "stage": "END", "device": 0, "time_us": 9},
    ]
    rows = model(document).annotations.to_records(index=False).tolist()
    assert [(name, start, end) for name, _, start, end in rows] == [
        ("late", -1, 5),
        ("open", 6, -1),
        ("outer", 7, -1),
        ("outer", 8, 9),
    ]


def test_a_rotated_ring_is_put_in_order() -> None:
    document = copy.deepcopy(history().document())
    trace = document["device_traces"][0]
    document["device_traces"][0] = trace[4:] + trace[:4]
    found = model(document)
    assert found.reordered == (0,)
    assert figures(found) == figures(history().snapshot())


def test_host_memory_is_kept_apart() -> None:
    found = model(generation(history().document(), "torch 2.14"))
    assert found.host_bytes == 4096
    assert history().snapshot().host_bytes is None


def test_unknown_keys_are_named() -> None:
    found = model(generation(history().document(), "unknown keys"))
    assert found.unknown_keys == ("from_the_future",)
    assert "teleport" in set(found.events["action"])


def test_rows_that_share_a_captured_stack_share_its_number() -> None:
    events = load_sample("train_adam").replay[0].events
    made = events["action"] == "segment_alloc"
    following = events.shift(-1)
    assert (following["action"][made] == "alloc").all()
    assert (following["context"][made] == events["context"][made]).all()


def test_final_blocks_share_their_stack_with_their_allocation() -> None:
    snapshot = load_sample("train_adam")
    live = snapshot.blocks[snapshot.blocks["state"] == "allocated"]
    allocs = snapshot.events[snapshot.events["action"] == "alloc"]
    assert set(live["context"]) <= set(allocs["context"])


@pytest.mark.parametrize(
    "trouble",
    [
        {"segments": [], "device_traces": [[1]]},
        {"segments": [{"blocks": [{"state": "odd"}], "total_size": 1}], "device_traces": []},
        {"segments": {}, "device_traces": [[{"action": "alloc"}], 3]},
        {"segments": [{"total_size": 5, "blocks": [{"size": 5, "state": "inactive"}], "segment_pool_id": 3}]},
    ],
)
def test_values_of_the_wrong_type_are_refused(trouble: dict[str, object]) -> None:
    with pytest.raises(SnapanaError) as caught:
        model(trouble)
    assert caught.value.code == "input.malformed"


# ---- values that no PyTorch writes


def spoiled(change: str) -> dict[str, Any]:
    history = History()
    history.free(history.alloc(3 * 2**20))
    history.alloc(1000)
    document = copy.deepcopy(history.document())
    segment, trace = document["segments"][0], document["device_traces"][0]
    changes: dict[str, Callable[[], object]] = {
        "no list of segments": lambda: document.update(segments=None),
        "segments as a dict": lambda: document.update(segments={}),
        "a trace that is no list": lambda: document.update(device_traces=[None, {}]),
        "a segment twice": lambda: document["segments"].append(segment),
        "a block twice": lambda: segment["blocks"].append(segment["blocks"][0]),
        "an event twice": lambda: trace.append(trace[0]),
        "size as text": lambda: trace[0].update(size="123"),
        "a broken size": lambda: trace[0].update(size=1.5),
        "no size at all": lambda: trace[0].update(size=None),
        "size as a list": lambda: trace[0].update(size=[1]),
        "a negative size": lambda: segment.update(total_size=-1),
        "a size beyond any card": lambda: trace[0].update(size=2**62),
        "a segment beyond any card": lambda: segment.update(total_size=2**43),
        "an address beyond 64 bits": lambda: trace[0].update(addr=2**70),
        "a device that no machine has": lambda: segment.update(device=10**9),
        "an action that is no text": lambda: trace[0].update(action=(1, 2)),
        "a state that is no text": lambda: segment["blocks"][0].update(state=[1]),
        "a pool of three": lambda: segment.update(segment_pool_id=(0, 0, 0)),
    }
    changes[change]()
    return document


CHANGES = [
    "no list of segments",
    "segments as a dict",
    "a trace that is no list",
    "a segment twice",
    "a block twice",
    "an event twice",
    "size as text",
    "a broken size",
    "no size at all",
    "size as a list",
    "a negative size",
    "a size beyond any card",
    "a segment beyond any card",
    "an address beyond 64 bits",
    "a device that no machine has",
    "an action that is no text",
    "a state that is no text",
    "a pool of three",
]


@pytest.mark.parametrize("change", CHANGES)
def test_wrong_values_are_refused(change: str) -> None:
    with pytest.raises(SnapanaError) as error:
        overview(model(spoiled(change)))
    assert error.value.code == "input.malformed"


def test_endless_lists_in_place_of_names_end_quickly() -> None:
    history = History()
    history.alloc(1000)
    history.step()
    document = history.document()
    laugh: list[object] = []
    for _ in range(60):
        laugh = [laugh, laugh]
    event = document["device_traces"][0][-1]
    event["frames"] = [{"name": laugh, "filename": laugh, "line": laugh}]
    event["user_metadata"] = event["compile_context"] = laugh
    for mark in document["external_annotations"]:
        mark["name"] = laugh
    document[("a", "b")] = laugh
    snapshot = model(document)
    assert snapshot.stacks.frames["name"].tolist()[-1] == "<list>"
    assert snapshot.annotations["name"].tolist() == ["<list>"]


def test_whole_floats_are_numbers() -> None:
    """JSON of other tools may have them."""
    history = History()
    history.alloc(1000)
    document = history.document()
    for event in document["device_traces"][0]:
        event["size"] = float(event["size"])
    assert model(document).events["size"].tolist() == history.snapshot().events["size"].tolist()


def test_events_without_the_final_state_are_never_negative() -> None:
    history = History()
    history.alloc(3 * 2**20)
    document = history.document()
    del document["segments"]
    (device,) = overview(model(document)).devices
    assert device.space is not None
    assert min(device.space.fragmentation.cached, device.space.fragmentation.releasable) >= 0
