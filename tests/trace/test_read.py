"""Traces of all versions and writers, damaged ones, and timelines."""

from __future__ import annotations

import gzip
import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import snapana
from snapana.errors import SnapanaError
from snapana.loading import load_any
from snapana.snapshot.model import InputInfo
from snapana.trace.memory import build_memory
from snapana.trace.model import Timeline, Trace
from snapana.trace.read import read_trace
from tests.conftest import SAMPLES


def read(text: bytes | str | dict[str, Any] | list[Any]) -> Trace:
    if not isinstance(text, bytes | str):
        text = json.dumps(text)
    return read_trace(text.encode() if isinstance(text, str) else text, InputInfo("built.json", "trace"))


def memory(size: int, address: int, total: int, time: float, **more: Any) -> dict[str, Any]:
    args = {"Total Reserved": 1 << 30, "Total Allocated": total, "Bytes": size, "Addr": address}
    args |= {"Device Id": 0, "Device Type": 1, "Ev Idx": int(time)} | more.pop("args", {})
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": time,
        "args": args,
    } | more


def spans() -> list[dict[str, Any]]:
    return [
        {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": 5, "dur": 50, "args": {}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 9, "dur": 3, "args": {"stream": 7}},
        memory(2048, 4096, 2048, 10),
        memory(512, 8192, 2560, 20),
        memory(-2048, 4096, 512, 30),
    ]


def document(**more: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "A card", "totalGlobalMem": 1 << 35}],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "TOKEN": "secret-of-the-job",
        "traceEvents": spans(),
    } | more


def peak(trace: Trace) -> int:
    return int(build_memory(trace).snapshot.replay[0].curves["allocated"].max())


# ---- containers and versions


def renamed(old: str, new: str) -> dict[str, Any]:
    return json.loads(json.dumps(document()).replace(old, new))


VARIANTS: dict[str, Any] = {
    "kineto": document(),
    "a bare list": spans(),
    "metadata behind the events": dict(reversed(document().items())),
    "times as text": renamed('"ts": 10,', '"ts": "10.0",'),
    "pid and tid as text": renamed('"pid": 1, "tid": 1', '"pid": "main", "tid": "main"'),
    "operators of 2021": renamed('"cpu_op"', '"Operator"'),
    "ROCm": renamed('"Device Type": 1', '"Device Type": 6'),
    "XPU": renamed('"Device Type": 1', '"Device Type": 12'),
    "a private backend": renamed('"Device Type": 1', '"Device Type": 20'),
    "the exporter in Python": renamed('"ph": "i"', '"ph": "X", "dur": 0'),
    "unknown keys": document(future={"a": [1]}, traceEvents=[*spans(), {"ph": "Q", "cat": "new", "ts": None}]),
    "huge thread ids": renamed('"tid": 1,', '"tid": 18446744073709551615,'),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_become_the_same_model(variant: str) -> None:
    trace = read(VARIANTS[variant])
    assert peak(trace) == 2560
    assert len(trace.operators) == 1
    assert len(trace.memory) == 3
    assert trace.repairs == {}


def test_absolute_times_need_no_base() -> None:
    events = json.loads(json.dumps(spans()))
    for event in events:
        event["ts"] += 1_695_835_542_514_261
    trace = read({"traceEvents": events, "baseTimeNanoseconds": 5_000_000_000})
    assert build_memory(trace).snapshot.replay[0].coverage.start_us == 1_695_835_542_514_271


def test_of_the_metadata_only_what_is_listed_is_kept() -> None:
    """Real traces carry the whole environment of their job."""
    trace = read(document(distributedInfo={"rank": 3, "world_size": 8, "env": {"AWS_SECRET": "x"}}))
    assert (trace.rank, trace.world_size) == (3, 8)
    assert "secret" not in repr(trace).lower()


def test_without_addresses_the_curve_is_known() -> None:
    bare = [
        {**event, "args": {key: event["args"][key] for key in ("Bytes", "Device Id", "Device Type")}}
        for event in spans()
        if event["name"] == "[memory]"
    ]
    assert peak(read({"traceEvents": bare})) == 2560


def test_lost_events_are_counted() -> None:
    events = [memory(2048, 4096, 2048, 10), memory(512, 8192, 10_000, 20)]
    built = build_memory(read({"traceEvents": events}))
    assert built.lost_bytes[0] == 10_000 - 2560
    assert built.snapshot.replay[0].coverage.replay_mismatches == 1


def test_what_was_freed_without_an_allocation_existed_before() -> None:
    events = [memory(512, 8192, 5000, 5), memory(-2048, 4096, 2952, 10)]
    replay = build_memory(read({"traceEvents": events})).snapshot.replay[0]
    assert replay.coverage.preexisting_bytes == 4488
    assert replay.curves["allocated"].tolist() == [4488, 5000, 2952]
    assert int(replay.live(0)["size"].sum()) == 5000


def test_a_failed_allocation_is_told() -> None:
    events = [memory(2048, 4096, 2048, 10), memory(1 << 40, 0, 2048, 20, name="[OutOfMemory]")]
    (device,) = snapana.trace_overview(read({"traceEvents": events})).devices
    assert device.profile is not None
    assert device.profile.failures["requested"].tolist() == [1 << 40]
    assert device.peak.allocated == 2048


@pytest.mark.parametrize("events", [[], [{"ph": "M", "name": "process_name"}], spans()[:2]])
def test_a_trace_without_memory_says_which_call_is_missing(events: list[Any]) -> None:
    results = snapana.trace_overview(read({"traceEvents": events}))
    assert results.devices == ()
    (found,) = [finding for finding in snapana.judge(results) if finding.code == "trace.no_memory"]
    assert "profile_memory=True" in found.advice


# ---- damage


@cache
def real() -> bytes:
    """The first 3,000 events of a real trace."""
    text = lzma.decompress((SAMPLES / "stream_trace.trace.json.xz").read_bytes())
    whole = json.loads(text)
    whole["traceEvents"] = whole["traceEvents"][:3000]
    return json.dumps(whole, indent=1).encode()


def insert(into: str) -> bytes:
    """Rename one operator in the raw text."""
    return real().replace(b'"aten::randn"', into.encode("utf-8", "surrogateescape"), 1)


DAMAGE = {
    "quotes in a name": ('"aten::randn {"device": "cpu"}"', "quotes"),
    "a quote at the end of a name": ('"aten::"randn""', "quotes"),
    "a lone backslash": ('"C:\\users\\q\\randn"', "backslashes"),
    "a raw newline": ('"aten::\nrandn"', "control_characters"),
    "a raw tab": ('"aten::\trandn"', "control_characters"),
    "bytes that are no UTF-8": ('"aten::\udcff\udcfe"', "invalid_utf8"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_within_an_event_is_mended(damage: str) -> None:
    text, kind = DAMAGE[damage]
    want = read(real())
    trace = read(insert(text))
    assert trace.events == want.events
    assert trace.repairs.get(kind) == 1
    assert "events_lost" not in trace.repairs
    assert len(trace.operators) == len(want.operators)
    assert len(trace.memory) == len(want.memory)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (b'"Ev Idx": 900', b'"Ev Idx": inf', "bare_numbers"),
        (b'"Ev Idx": 900', b'"warps per SM": -nan, "Ev Idx": 900', "bare_numbers"),
        (b'"Ev Idx": 900', b'"Ev Idx": 900,', "commas"),
    ],
)
def test_damage_within_arguments_is_mended(old: bytes, new: bytes, kind: str) -> None:
    text = re.sub(rb'"Ev Idx": \d+', old, real(), count=1).replace(old, new, 1)
    trace = read(text)
    assert trace.events == 3000
    assert trace.repairs.get(kind) == 1
    assert "events_lost" not in trace.repairs


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_of_a_cut_file_all_complete_events_are_kept(share: float) -> None:
    text = real()
    cut = text[: int(len(text) * share)]
    # An event is complete where its closing bracket is there.
    complete = len(re.findall(rb"\n  \}", cut[cut.index(b"traceEvents") :]))
    trace = read(cut)
    assert trace.events == complete > 0
    assert trace.repairs["cut_tail"] == 1
    assert trace.base_us == read(text).base_us


def test_garbage_behind_the_end_is_passed_over() -> None:
    trace = read(real() + b"\n}}} and more")
    assert trace.events == 3000


def test_what_is_no_trace_at_all_is_refused() -> None:
    with pytest.raises(SnapanaError) as error:
        read(b'{"traceEvents": "none"')
    assert error.value.code == "input.corrupt"


def test_concatenated_gzip_members_are_one_trace(tmp_path: Path) -> None:
    text = json.dumps(document()).encode()
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(text[:200]) + gzip.compress(text[200:]))
    assert peak(snapana.load_trace(path)) == 2560


def test_hostile_values_raise_nothing_unexpected() -> None:
    for value in (None, True, "x", [], {}, 1e400, -1, 2**70, "\u202e"):
        events = [memory(2048, 4096, 2048, 10)]
        for key in ("name", "cat", "ts", "dur", "tid", "args"):
            events.append({**spans()[0], key: value})
            events.append({**spans()[2], key: value})
        for key in ("Bytes", "Addr", "Total Allocated", "Total Reserved", "Device Id", "Device Type", "Ev Idx"):
            events.append(memory(2048, 4096, 2048, 11, args={key: value}))
        try:
            results = snapana.trace_overview(read(json.dumps({"traceEvents": events})))
        except SnapanaError:
            continue
        snapana.judge(results)


# ---- timelines


@pytest.mark.parametrize("name", ["train.timeline.json.gz", "train.timeline.raw.json.gz"])
def test_both_exports_say_the_same(name: str) -> None:
    timeline = load_any(SAMPLES / name)
    assert isinstance(timeline, Timeline)
    peak = int(timeline.total.argmax())
    assert int(timeline.total[peak]) == 595_996_160
    assert timeline.sizes[peak].tolist()[:3] == [59_828_224, 123_846_656, 16_896]


def test_rows_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[[1, 2, 3, 99], [2, 2, 3, 0]]")
    with pytest.raises(SnapanaError) as error:
        load_any(path)
    assert error.value.code == "input.corrupt"


@pytest.mark.parametrize(
    "more",
    [
        {"Total Allocated": 2**64 - 512},
        {"Bytes": 2**63 + 5},
        {"Bytes": "9" * 40},
        {"Bytes": 1e300},
        {"Device Id": 70_000},
        {"Addr": -1},
        {"Total Reserved": None},
    ],
)
def test_numbers_beyond_their_type_are_read_leniently(more: dict[str, Any]) -> None:
    trace = read(document(traceEvents=[*spans(), memory(512, 12288, 1024, 40, args=more)]))
    assert len(trace.memory.bytes) == 4
    assert build_memory(trace).snapshot.replay[0].coverage.events >= 3


@pytest.mark.parametrize("inner", [{"list": [{"a": 1}], "x": 2}, {"name": "fn {0: {}}] x"}])
def test_brackets_within_an_event_do_not_end_a_damaged_list(inner: dict[str, Any]) -> None:
    odd = {"ph": "X", "cat": "cpu_op", "name": "f", "pid": 1, "tid": 1, "ts": 15, "dur": 1, "args": inner}
    events = [*spans()[:3], odd, *spans()[3:]]
    text = json.dumps(document(traceEvents=events))
    trace = read(text[: text.rindex("]")])
    assert trace.repairs == {"cut_tail": 1}
    assert len(trace.memory.bytes) == 3
    assert len(trace.operators) == 2


def test_repair_touches_numbers_not_text() -> None:
    text = json.dumps(document()).replace("aten::addmm", "a.py(12): nan")
    text = text.replace('"args": {}', '"args": {"Ev Idx": inf}')
    trace = read(text)
    assert trace.repairs == {"bare_numbers": 1}
    assert "a.py(12): nan" in trace.operators.names


def test_an_event_with_odd_arguments_is_kept() -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 5.5, "dur": 50, "args": ""}
    trace = read(document(traceEvents=[event, *spans()]))
    assert "odd" in trace.operators.names
    assert trace.repairs == {}


def test_without_addresses_blocks_are_paired_by_size() -> None:
    events = [memory(1024, 0, total, time) for time, total in ((1, 1024), (2, 2048))]
    events += [memory(-1024, 0, total, time) for time, total in ((3, 1024), (4, 0))]
    replay = build_memory(read(document(traceEvents=events))).snapshot.replay[0]
    assert replay.coverage.complete
    assert sorted(replay.allocations[["alloc", "free_requested"]].to_numpy().tolist()) == [[0, 3], [1, 2]]
