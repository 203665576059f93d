"""Opens any input and finds from its content what it is."""

from __future__ import annotations

import binascii
import hashlib
import io
import os
import re
import sys
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from snapana.errors import SnapanaError
from snapana.units import format_bytes

MAX_INPUT = 16 * 1024**3
_CHUNK = 4 * 1024**2
_MAX_LAYERS = 3
_HEAD = 64 * 1024


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


Kind = Literal["snapshot", "trace", "timeline"]
Encoding = Literal["pickle", "json"]


@dataclass(frozen=True)
class Source:
    """One input, decompressed and recognised.

    Attributes:
        name: file name without folders, ``<stdin>`` for standard input.
        path: None for standard input.
        kind: ``snapshot``, ``trace`` (Chrome trace of torch.profiler) or ``timeline`` (export_memory_timeline).
        encoding: of ``payload``.
        payload: the pickle, or JSON as UTF-8.
        digest: gives the SHA-256 of the bytes as given, before decompression; computed beside the reading.
        size_bytes: of the bytes as given.

    """

    name: str
    path: Path | None
    kind: Kind
    encoding: Encoding
    payload: bytes
    digest: Callable[[], str]
    size_bytes: int


def open_source(path: str | os.PathLike[str], *, max_input: int = MAX_INPUT) -> Source:
    """Read a path, or ``-`` for standard input, whatever it is packed in.

    Args:
        path: a pickle, JSON, memory-viz HTML page, or any of them as .gz, .xz, .zst or .zip.
        max_input: most bytes after decompression.

    Raises:
        SnapanaError: with a code ``input.…`` that says what is wrong.

    """
    name, place, raw = _read(path, max_input)
    digest = _digest(raw)
    payload = _unpack(raw, name, max_input)
    if _beginning(payload)[:1] == b"<" and _is_html(payload):
        payload = _embedded_pickle(payload, name)
    kind, encoding = _recognise(payload, name)
    return Source(name, place, kind, encoding, payload, digest, len(raw))


def read_snapshot_document(source: Source) -> object:
    """Decode the payload into builtins.

    Raises:
        SnapanaError: of ``load_pickle``, or ``input.corrupt`` for damaged JSON.

    """
    if source.encoding == "pickle":
        from snapana.snapshot.unpickle import load_pickle

        return load_pickle(source.payload)
    return _decode_json(source.payload, source.name)


# ---- bytes


def _digest(raw: bytes) -> Callable[[], str]:
    """Hash in a thread of its own: it needs no interpreter, and takes as long as a good part of decoding."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(hashlib.sha256(raw).hexdigest()), daemon=True)
    thread.start()

    def result() -> str:
        thread.join()
        return found[0]

    return result


def _read(path: str | os.PathLike[str], max_input: int) -> tuple[str, Path | None, bytes]:
    text = os.fspath(path)
    if not text:
        raise SnapanaError("input.not_found", "The input's name is empty.", "Name a file, or - for standard input.")
    if text == "-":
        if sys.stdin is None:
            raise SnapanaError("input.unreadable", "Standard input is closed.")
        raw = _read_stream(sys.stdin.buffer, "<stdin>", max_input)
        return "<stdin>", None, _not_empty(raw, "<stdin>")
    if re.match(r"[a-z][a-z0-9+.-]+://", text, re.IGNORECASE):
        raise SnapanaError("input.url", f"{text[:200]} is a URL.", "Download the file first; snapana opens no network.")
    place = Path(text)
    try:
        with place.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            # A plain file is read in one piece; what has no size, such as a pipe, in several.
            raw = stream.read() if 0 < size <= max_input else _read_stream(stream, place.name, max_input)
    except FileNotFoundError:
        raise SnapanaError("input.not_found", f"There is no file {text}.") from None
    except IsADirectoryError:
        raise SnapanaError(
            "input.is_directory",
            f"{text} is a folder.",
            "Name one file in it; snapana summary and report take a folder whole.",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SnapanaError("input.unreadable", f"Cannot read {text}: {reason}.") from None
    return place.name, place, _not_empty(raw, place.name)


def _read_stream(stream: _Readable, name: str, max_input: int) -> bytes:
    content = io.BytesIO()
    while part := stream.read(_CHUNK):
        if content.tell() + len(part) > max_input:
            raise _too_large(name, max_input)
        content.write(part)
    # Shares the buffer: joined pieces would stand in memory twice.
    return content.getvalue()


def _not_empty(raw: bytes, name: str) -> bytes:
    if raw:
        return raw
    raise SnapanaError(
        "input.empty",
        f"{name} is empty.",
        "The process died while it wrote the file; with stacks='all' the symboliser can be the cause.",
    )


def _too_large(name: str, max_input: int) -> SnapanaError:
    return SnapanaError(
        "input.too_large",
        f"{name} holds more than {format_bytes(max_input)}.",
        "Raise --max-input to read it anyway.",
    )


# ---- compression


def _unpack(raw: bytes, name: str, max_input: int) -> bytes:
    """Take off up to three layers of compression."""
    for _ in range(_MAX_LAYERS):
        unpack = _unpacker(raw)
        if unpack is None:
            return raw
        raw = _not_empty(unpack(raw, name, max_input), name)
    return raw


def _unpacker(raw: bytes) -> Callable[[bytes, str, int], bytes] | None:
    if raw.startswith(b"\x1f\x8b"):
        return _gunzip
    if raw.startswith(b"\xfd7zXZ\x00"):
        return _unxz
    if raw.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd
    if raw.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _unzip
    return None


def _stream_out(stream: _Readable, name: str, max_input: int, errors: tuple[type[Exception], ...]) -> bytes:
    try:
        return _read_stream(stream, name, max_input)
    except EOFError:
        raise _cut(name) from None
    except errors as error:
        if "end-of-stream" in str(error) or "Compressed file ended" in str(error):
            raise _cut(name) from None
        raise SnapanaError("input.corrupt", f"{name} is damaged: its compressed data cannot be read.") from None


def _cut(name: str) -> SnapanaError:
    return SnapanaError(
        "input.truncated", f"{name} was cut: its compressed data ends in the middle.", "Copy the file again."
    )


def _gunzip(raw: bytes, name: str, max_input: int) -> bytes:
    import gzip

    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
        return _stream_out(stream, name, max_input, (OSError, zlib.error))


def _unxz(raw: bytes, name: str, max_input: int) -> bytes:
    import lzma

    with lzma.LZMAFile(io.BytesIO(raw)) as stream:
        return _stream_out(stream, name, max_input, (lzma.LZMAError, OSError))


def _unzstd(raw: bytes, name: str, max_input: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise SnapanaError(
            "input.zstd_missing",
            f"{name} is packed with zstd, which Python needs a package for.",
            "Install it: pip install 'snapana[zstd]'.",
        ) from None
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw), read_across_frames=True)
    with reader as stream:
        content = _stream_out(stream, name, max_input, (zstandard.ZstdError, OSError))
    # The reader gives what it has where the data ends, without a word.
    said = zstandard.frame_content_size(raw[:64]) if len(raw) >= 18 else -1
    if said > len(content):
        raise _cut(name)
    return content


def _unzip(raw: bytes, name: str, max_input: int) -> bytes:
    import lzma
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = [info for info in archive.infolist() if _is_content(info.filename)]
            if any(info.filename.endswith("/data.pkl") for info in members):
                raise _unknown(name, "a checkpoint of torch.save")
            if len(members) != 1:
                listed = ", ".join(info.filename[:60] for info in members[:5]) or "none"
                raise SnapanaError(
                    "input.zip_members",
                    f"{name} holds {len(members)} files ({listed}).",
                    "Unpack it and name one.",
                )
            with archive.open(members[0]) as stream:
                return _stream_out(stream, name, max_input, (zipfile.BadZipFile, OSError, zlib.error, lzma.LZMAError))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError, lzma.LZMAError, zlib.error) as error:
        if "password" in str(error) or "encrypted" in str(error):
            raise SnapanaError("input.unreadable", f"{name} is encrypted.", "Unpack it first.") from None
        raise SnapanaError("input.corrupt", f"{name} is a damaged zip archive.", "Copy the file again.") from None


def _is_content(filename: str) -> bool:
    base = filename.rsplit("/", 1)[-1]
    return bool(base) and not base.startswith(".") and not filename.startswith("__MACOSX/")


# ---- HTML


def _is_html(payload: bytes) -> bool:
    head = payload[:4096].lower()
    return b"<html" in head or b"<!doctype" in head or b"<script" in payload[:_HEAD].lower()


_LOCAL_FILE = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=\s]*)"')


def _embedded_pickle(payload: bytes, name: str) -> bytes:
    """Recover the pickle from a page of ``_memory_viz trace_plot`` or ``segment_plot``."""
    found = _LOCAL_FILE.findall(payload)
    if len(found) > 1:
        raise SnapanaError("input.html_several", f"{name} holds {len(found)} snapshots.", "Use the pickles themselves.")
    if not found:
        picture = b"data:image/png;base64" in payload
        what = "only a picture, as export_memory_timeline writes it" if picture else "no embedded snapshot"
        raise SnapanaError("input.html", f"{name} is an HTML page with {what}.", "Use the pickle it was made from.")
    try:
        return binascii.a2b_base64(found[0])
    except binascii.Error:
        raise SnapanaError("input.corrupt", f"{name} holds a damaged snapshot.", "Use the pickle itself.") from None


# ---- recognition


def _beginning(payload: bytes) -> bytes:
    """Give the first bytes that are no white space, without a copy of all."""
    return payload[: 2 * _HEAD].lstrip()[:_HEAD]


def _recognise(payload: bytes, name: str) -> tuple[Kind, Encoding]:
    if payload[:1] == b"\x80" and len(payload) > 1 and payload[1] <= 5:
        return "snapshot", "pickle"
    head = _beginning(payload.removeprefix(b"\xef\xbb\xbf"))
    if head[:1] in {b"{", b"["}:
        return _json_kind(payload.removeprefix(b"\xef\xbb\xbf"), head, name), "json"
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise SnapanaError(
            "input.lfs_pointer", f"{name} is a Git LFS pointer, not the file itself.", "Run git lfs pull."
        )
    if payload[:1] in {b"(", b"]", b"}", b"c"} and payload.rstrip(b"\x00\n")[-1:] == b".":
        return "snapshot", "pickle"
    raise _unknown(name, _looks_like(payload))


_MAGIC = (
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"%PDF", "a PDF document"),
    (b"\x7fELF", "a program or library"),
    (b"MZ", "a Windows program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\x93NUMPY", "a numpy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"BZh", "bzip2 data; unpack it first"),
    (b"7z\xbc\xaf", "a 7-Zip archive; unpack it first"),
    (b"Rar!", "a RAR archive; unpack it first"),
)


def _looks_like(payload: bytes) -> str:
    for magic, what in _MAGIC:
        if payload.startswith(magic):
            return what
    if payload[257:262] == b"ustar":
        return "a tar archive; unpack it first"
    if payload[8:9] == b"{" and b'"dtype"' in payload[:4096]:
        return "a safetensors checkpoint"
    if not payload.strip(b"\x00"):
        return "nothing but zero bytes: the disk was full, or the copy failed"
    if b"CUDA out of memory" in payload or b"OutOfMemoryError" in payload:
        return "a log with an out-of-memory error"
    sample = payload[:4096]
    if all(byte >= 32 or byte in b"\t\n\r\f\x1b" for byte in sample):
        return "plain text"
    return "unknown binary data"


def _unknown(name: str, what: str) -> SnapanaError:
    return SnapanaError(
        "input.unknown_format",
        f"{name} is no memory snapshot: it looks like {what}.",
        "snapana reads what torch.cuda.memory._dump_snapshot(path) writes.",
    )


_TRACE_KEYS = ("traceEvents", "schemaVersion", "deviceProperties", "distributedInfo", "displayTimeUnit")
_SNAPSHOT_KEYS = ("segments", "device_traces", "allocator_settings", "external_annotations")


def _json_kind(text: bytes, head: bytes, name: str) -> Kind:
    """Tell from the first keys; only where they say nothing, from all of them."""
    if head[:1] == b"{":
        first = re.match(rb'\{\s*"((?:[^"\\]|\\.)*)"', head)
        key = first.group(1).decode("utf-8", "replace") if first else ""
        if key in _TRACE_KEYS:
            return "trace"
        if key in _SNAPSHOT_KEYS:
            return "snapshot"
        return _object_kind(_raw_members(text, name), name)
    if re.match(rb"\[\s*\{", head):
        if b'"total_size"' in head and b'"blocks"' in head:
            return "snapshot"
        if b'"ph"' in head:
            return "trace"
    elif _is_timeline(text, name):
        return "timeline"
    raise _unknown(name, "a JSON list of something else")


def _raw_members(text: bytes, name: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken_json(name, str(error), text) from None


def _object_kind(members: dict[str, Any], name: str) -> Kind:
    if "traceEvents" in members:
        return "trace"
    if "segments" in members or "device_traces" in members:
        return "snapshot"
    keys = ", ".join(key[:40] for key in list(members)[:5]) or "no keys"
    raise _unknown(name, f"a JSON object with {keys}")


def _is_timeline(text: bytes, name: str) -> bool:
    """``[times, sizes]`` with nine sizes each, or a list of ``[time, action, bytes, category]``."""
    import msgspec

    try:
        rows = msgspec.json.decode(text, type=list[msgspec.Raw])
        if not rows:
            raise _unknown(name, "an empty JSON list")
        first = msgspec.json.decode(rows[0])
        last = msgspec.json.decode(rows[-1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken_json(name, str(error), text) from None
    if not isinstance(first, list) or not isinstance(last, list):
        return False
    if len(rows) == 2 and len(first) == len(last) and all(isinstance(row, list) and len(row) == 9 for row in last):
        return True
    return len(first) == 4 and all(isinstance(value, int) for value in first)


def _decode_json(text: bytes, name: str) -> object:
    import msgspec

    text = text.removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken_json(name, str(error), text) from None


def _broken_json(name: str, error: str, text: bytes) -> SnapanaError:
    if "truncated" in error:
        return SnapanaError("input.truncated", f"{name} was cut: its JSON ends in the middle.", "Copy the file again.")
    what = " ".join(error.split())[:120]
    return SnapanaError("input.corrupt", f"{name} is damaged JSON ({what}).", "Write or copy the file again.")
