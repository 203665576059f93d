"""Unpickling that builds nothing but builtins, on the C unpickler for speed.

Snapshot writers emit plain data only (torch/csrc/cuda/memory_snapshot.cpp, torch/cuda/memory.py), so every
class, persistent id and extension can be refused.
"""

from __future__ import annotations

import copyreg
import gc
import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from snapana.errors import SnapanaError

# Room for what is built from the input: real snapshots take about ten times their size.
_LEAST_ROOM = 1024**3
_ROOM_PER_BYTE = 64


class _PlainUnpickler(pickle.Unpickler):
    """Refuses whatever is not plain data."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class and function, by name."""
        raise SnapanaError(
            "input.pickle_class",
            f"The pickle names a class or function, {_printable(module)}.{_printable(name)}; a memory snapshot "
            "holds only plain data.",
            _hint(module),
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        """Refuse references to storage outside of the pickle."""
        raise SnapanaError(
            "input.pickle_persistent_id",
            "The pickle refers to data outside of itself; a memory snapshot does not.",
            "It looks like a checkpoint of torch.save.",
        )


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in str(text)[:120])


def _hint(module: str) -> str:
    if module.startswith(("torch", "collections")):
        return "It looks like a checkpoint or another object saved by torch.save."
    if module.startswith("numpy"):
        return "Was numpy data put into the snapshot? Use the file that _dump_snapshot wrote."
    return "It was not loaded, and nothing in it was run."


def load_pickle(data: bytes | memoryview) -> object:
    """Unpickle builtins.

    Args:
        data: the pickle, protocols 0 to 5; bytes behind its end are ignored.

    Raises:
        SnapanaError: ``input.pickle_class``, ``input.pickle_persistent_id``, ``input.pickle_extension``,
            ``input.truncated``, ``input.corrupt`` or ``input.too_large``.

    """
    with without_gc(), _without_extensions(), _bounded_memory(len(data)):
        try:
            return _PlainUnpickler(io.BytesIO(data), buffers=None).load()
        except SnapanaError:
            raise
        except (MemoryError, RecursionError):
            # Raised anew below: with the limit lifted there is memory for the message.
            failure: Exception = _too_large()
        except EOFError:
            failure = _truncated()
        except Exception as error:
            failure = _explain(error)
    raise failure from None


def _too_large() -> SnapanaError:
    return SnapanaError(
        "input.too_large",
        "The pickle asks for far more memory than a snapshot of its size could need.",
        "It is damaged, or made to harm.",
    )


def _truncated() -> SnapanaError:
    return SnapanaError(
        "input.truncated",
        "The pickle ends in the middle: the file was cut.",
        "Was the process killed while it wrote, or the copy interrupted? Take the dump again.",
    )


def _explain(error: Exception) -> SnapanaError:
    """Turn what the C unpickler raises on broken bytes into one line."""
    text = str(error)
    if "truncated" in text or "ran out" in text.lower() or "exhausted" in text:
        return _truncated()
    if "extension" in text:
        return SnapanaError(
            "input.pickle_extension",
            "The pickle uses an extension code; a memory snapshot holds only plain data.",
        )
    what = _printable(text) or type(error).__name__
    return SnapanaError("input.corrupt", f"The pickle is damaged ({what}).", "Take the dump or the copy again.")


@contextmanager
def without_gc() -> Iterator[None]:
    """Switch collections off: while millions of objects are built they take three times as long, and find nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _without_extensions() -> Iterator[None]:
    """Hide extension codes that this process knows: the C unpickler takes cached ones without asking."""
    tables: tuple[dict[Any, Any], ...] = (
        copyreg._inverted_registry,  # type: ignore[attr-defined]
        copyreg._extension_cache,  # type: ignore[attr-defined]
    )
    saved = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, content in zip(tables, saved, strict=True):
            table.update(content)


@contextmanager
def _bounded_memory(size: int) -> Iterator[None]:
    """Let the address space grow by a bounded amount: nine bytes can make the unpickler take gigabytes."""
    in_use = _address_space()
    if in_use is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = in_use + max(_LEAST_ROOM, _ROOM_PER_BYTE * size)
    bounds = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *bounds]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int | None:
    """Bytes of address space in use; None where this cannot be told or limited."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError, ImportError):
        return None
