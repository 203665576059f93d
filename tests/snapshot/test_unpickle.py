"""Nothing but builtins is built, and nothing is run."""

from __future__ import annotations

import copyreg
import gc
import pickle
import resource
import sys
from pathlib import Path

import pytest

from snapana.errors import SnapanaError
from snapana.snapshot.unpickle import load_pickle


class Evil:
    """Runs a command when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.marker}",)


def code_of(data: bytes) -> str:
    with pytest.raises(SnapanaError) as caught:
        load_pickle(data)
    return caught.value.code


@pytest.mark.parametrize("protocol", range(6))
def test_builtins_of_every_protocol(protocol: int) -> None:
    value = {"a": [1, -(2**70), 2.5, True, None, (1, 2), "ü"], "b": {"c": []}}
    assert load_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_calls_are_refused_and_not_made(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    assert code_of(pickle.dumps([1, Evil(marker)], protocol)) == "input.pickle_class"
    assert not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02cbuiltins\nobject\n)\x81.",
        b"\x80\x04cbuiltins\neval\n)}\x92.",
    ],
)
def test_every_way_to_name_a_function_is_refused(data: bytes) -> None:
    assert code_of(data) == "input.pickle_class"


def test_the_class_is_named() -> None:
    with pytest.raises(SnapanaError, match=r"torch\._utils\._rebuild_tensor_v2.*torch\.save"):
        load_pickle(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n.")


@pytest.mark.parametrize("data", [b"\x80\x02U\x01aQ.", b"P1\n."])
def test_persistent_ids_are_refused(data: bytes) -> None:
    assert code_of(data) == "input.pickle_persistent_id"


def test_extensions_are_refused_even_where_known(tmp_path: Path) -> None:
    """The C unpickler would take a cached extension without asking."""
    copyreg.add_extension("os", "system", 240)
    try:
        assert pickle.loads(b"\x80\x02\x82\xf0.") is __import__("os").system
        marker = tmp_path / "ran"
        command = f"touch {marker}".encode()
        call = b"\x80\x02\x82\xf0U" + bytes([len(command)]) + command + b"\x85R."
        assert code_of(call) in {"input.pickle_extension", "input.pickle_class"}
        assert not marker.exists()
        assert copyreg._inverted_registry[240] == ("os", "system")  # type: ignore[attr-defined]
    finally:
        copyreg.remove_extension("os", "system", 240)
        copyreg.clear_extension_cache()  # type: ignore[attr-defined]


def test_out_of_band_buffers_are_refused() -> None:
    assert code_of(b"\x80\x05\x97.") == "input.corrupt"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the address space is bounded on Linux only")
@pytest.mark.parametrize("data", [b"\x80\x02]r\xff\xff\xff\x7f", b"\x80\x04\x8e" + b"\xff" * 5 + b"\0\0\0"])
def test_a_few_bytes_cannot_take_gigabytes(data: bytes) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert code_of(data) in {"input.too_large", "input.truncated"}
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak < 6 * 2**30


def test_deep_nesting_does_no_harm() -> None:
    value = load_pickle(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert isinstance(value, list)
    # Taken apart by hand: to free it recursively is what a deep structure could abuse.
    while value:
        value = value.pop()


def test_collection_is_on_again_afterwards() -> None:
    assert gc.isenabled()
    load_pickle(pickle.dumps([1]))
    assert code_of(b"\x80\x04]") == "input.truncated"
    assert gc.isenabled()


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x80\x09.", b"\x80\x04.", b"\x80\x04h\x05.", b"\x80\x04\xff."])
def test_broken_opcodes(data: bytes) -> None:
    assert code_of(data) in {"input.truncated", "input.corrupt"}
