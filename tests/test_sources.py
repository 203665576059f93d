"""Any input is opened, and recognised by its content."""

from __future__ import annotations

import base64
import gzip
import io
import json
import lzma
import pickle
import sys
import zipfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import snapana
from snapana.errors import SnapanaError
from snapana.sources import open_source, read_snapshot_document
from tests.builders import History
from tests.conftest import SAMPLES


def document() -> dict[str, object]:
    history = History()
    history.free(history.alloc(1000))
    history.alloc(3_000_000)
    return history.document()


PICKLE = pickle.dumps(document(), protocol=4)


def zipped(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def viz_page(content: bytes) -> bytes:
    text = base64.b64encode(content).decode()
    files = json.dumps([{"name": "snapshot.pickle", "base64": text}])
    return (
        f"<!DOCTYPE html><html><head></head><body><script>const local_files = {files};</script></body></html>".encode()
    )


PACKED = {
    "plain": PICKLE,
    "padded": PICKLE + b"\0\0\0",
    "gz": gzip.compress(PICKLE),
    "gz members": gzip.compress(PICKLE[:500]) + gzip.compress(PICKLE[500:]),
    "xz": lzma.compress(PICKLE),
    "zst": zstandard.compress(PICKLE),
    "zip": zipped(**{"run/profil_vram": PICKLE, "__MACOSX/x": b"junk"}),
    "gz in xz": lzma.compress(gzip.compress(PICKLE)),
    "html": viz_page(PICKLE + b"\0\0"),
    "json": json.dumps(document()).encode(),
    "json with mark": b"\xef\xbb\xbf \n" + json.dumps(document()).encode(),
    "protocol 2": pickle.dumps(document(), protocol=2),
    "protocol 3": pickle.dumps(document(), protocol=3),
    "protocol 5": pickle.dumps(document(), protocol=5),
}


@pytest.mark.parametrize("packing", PACKED)
def test_every_packing_gives_the_same_snapshot(packing: str, tmp_path: Path) -> None:
    # The name says nothing of what is inside.
    path = tmp_path / "input.bin"
    path.write_bytes(PACKED[packing])
    snapshot = snapana.load(path)
    assert snapshot.events["size"].tolist() == snapana.load(_plain(tmp_path)).events["size"].tolist()
    assert snapshot.replay[0].coverage.complete
    assert snapshot.info.size_bytes == len(PACKED[packing])


def _plain(folder: Path) -> Path:
    path = folder / "plain.pickle"
    path.write_bytes(PICKLE)
    return path


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PICKLE)))
    source = open_source("-")
    assert (source.name, source.kind, source.path) == ("<stdin>", "snapshot", None)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"schemaVersion": 1, "traceEvents": []}', "trace"),
        (b'{"my_key": 1, "traceEvents": [{"ph": "X"}]}', "trace"),
        (b'[{"ph": "X", "name": "a"}]', "trace"),
        (b"[[1, 2], [[0,0,0,0,0,0,0,0,0], [0,0,0,0,0,0,0,0,1]]]", "timeline"),
        (b"[[-1, 1, 512, 0], [7, 2, 512, 7]]", "timeline"),
        (b'{"segments": [], "device_traces": []}', "snapshot"),
        (b'[{"device": 0, "total_size": 1, "blocks": []}]', "snapshot"),
    ],
)
def test_kinds_of_json(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    assert open_source(path).kind == kind


BAD = {
    "input.empty": [b"", gzip.compress(b"")],
    "input.lfs_pointer": [b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 3\n"],
    "input.truncated": [
        PICKLE[:300],
        PICKLE[:-1],
        gzip.compress(PICKLE)[:-20],
        lzma.compress(PICKLE)[:-20],
        zstandard.compress(PICKLE)[:-20],
        json.dumps(document()).encode()[:-20],
    ],
    "input.corrupt": [
        b"\x80\x04a.",
        gzip.compress(PICKLE)[:60] + b"\0" * 60,
        b"PK\x03\x04 no zip",
        b'{"segments": [1,]}',
        b'<html><script>[{"base64": "abc"}]</script></html>',
    ],
    "input.html": [b"<!DOCTYPE html><html>hello</html>", b'<html><img src="data:image/png;base64,AAAA"></html>'],
    "input.html_several": [viz_page(PICKLE) + viz_page(PICKLE)],
    "input.zip_members": [zipped(a=PICKLE, b=PICKLE), zipped()],
    "input.unknown_format": [
        b"\x89PNG\r\n\x1a\n",
        b"%PDF-1.7",
        b"\x7fELF\x02",
        b"hello there",
        b"RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
        b"\0" * 100,
        b"\x01\x02\x03\xff\xfe",
        b'{"a": 1}',
        b'["a", "b"]',
        b"[]",
        zipped(**{"archive/data.pkl": b""}),
        b"SQLite format 3\0",
    ],
    "input.pickle_class": [pickle.dumps(Path("x")), pickle.dumps({"segments": [complex(1, 2)]})],
    "input.not_a_snapshot": [
        pickle.dumps({"layer.weight": 1}),
        pickle.dumps([1, 2]),
        pickle.dumps(7),
        pickle.dumps([]),
        pickle.dumps({}),
        b'{"schemaVersion": 1, "traceEvents": []}',
    ],
    "input.no_history": [pickle.dumps({"segments": [], "device_traces": [[], []]})],
    "input.malformed": [
        pickle.dumps({"segments": 3, "device_traces": [[]]}),
        pickle.dumps({"segments": [1], "device_traces": []}),
        pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": "x", "addr": 1, "stream": 0}]]}),
        pickle.dumps({"segments": [], "device_traces": [[{"action": ["alloc"], "size": 1, "addr": 1, "stream": 0}]]}),
        pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": -5, "addr": 1, "stream": 0}]]}),
        pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": 5, "addr": 1, "frames": 3}]]}),
    ],
}


@pytest.mark.parametrize(("code", "content"), [(code, content) for code, each in BAD.items() for content in each])
def test_bad_input_ends_in_one_line_and_a_code(code: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "profil_vram.pickle"
    path.write_bytes(content)
    with pytest.raises(SnapanaError) as caught:
        snapana.load(path)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    for name, code in (
        (tmp_path / "missing", "input.not_found"),
        (tmp_path, "input.is_directory"),
        ("https://example.com/a.pickle", "input.url"),
        ("a\0b", "input.unreadable"),
    ):
        with pytest.raises(SnapanaError) as caught:
            open_source(name)
        assert caught.value.code == code


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0" * 50_000_000))
    with pytest.raises(SnapanaError) as caught:
        open_source(path, max_input=1_000_000)
    assert caught.value.code == "input.too_large"


def test_zstd_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(PACKED["zst"])
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(SnapanaError, match="snapana\\[zstd\\]"):
        open_source(path)


REAL = lzma.decompress((SAMPLES / "train_truncated.pickle.xz").read_bytes())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, len(REAL)),
    flips=st.lists(st.tuples(st.integers(0, len(REAL) - 1), st.integers(0, 255)), max_size=4),
)
def test_damaged_files_end_in_an_error_or_a_snapshot(tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(REAL)
    for place, value in flips:
        damaged[place] = value
    path = tmp_path / "damaged.pickle"
    path.write_bytes(damaged[:cut] if cut % 2 else damaged)
    code = _outcome(path)
    assert code == "" or code.startswith("input.")


def _outcome(path: Path) -> str:
    """Load and replay; give the error's code, empty if there is none."""
    try:
        return "" if snapana.load(path).replay.devices else "nothing"
    except SnapanaError as error:
        return error.code


def test_json_snapshots_decode_to_the_same_document(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(PACKED["json"])
    assert read_snapshot_document(open_source(path)) == json.loads(PACKED["json"])
