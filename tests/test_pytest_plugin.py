"""The pytest plugin, driven through a stand-in for torch."""

from __future__ import annotations

import lzma

import pytest

from tests.conftest import SAMPLES

pytest_plugins = ["pytester"]

# What the plugin calls, with the names of torch.cuda; the recording is a sample.
STAND_IN = """
import pickle

PEAK = {peak}
calls = []


class memory:
    @staticmethod
    def _record_memory_history(enabled="all", max_entries=0, stacks="all"):
        calls.append(("record", enabled))

    @staticmethod
    def _snapshot():
        with open({pickle!r}, "rb") as stream:
            return pickle.load(stream)


def is_available():
    return {available}


def device_count():
    return 1


def synchronize():
    pass


def reset_peak_memory_stats(device):
    calls.append(("reset", device))


def max_memory_allocated(device):
    return PEAK
"""

TEST = """
import pytest


@pytest.mark.limit_vram("{limit}")
def test_one():
    assert {holds}


def test_other():
    pass
"""


def prepare(pytester: pytest.Pytester, *, limit: str, available: bool = True, holds: bool = True) -> None:
    recording = pytester.path / "train.pickle"
    recording.write_bytes(lzma.decompress((SAMPLES / "train_adam.pickle.xz").read_bytes()))
    package = pytester.mkpydir("torch")
    (package / "__init__.py").write_text("from torch import cuda\n__version__ = '2.13.0'\n")
    (package / "cuda.py").write_text(STAND_IN.format(peak=1_016_139_264, pickle=str(recording), available=available))
    pytester.makepyfile(TEST.format(limit=limit, holds=holds))


def outcomes(pytester: pytest.Pytester) -> tuple[dict[str, int], str]:
    found = pytester.runpytest_subprocess("-rs", "--strict-markers")
    return found.parseoutcomes(), found.stdout.str()


def test_within_the_limit(pytester: pytest.Pytester) -> None:
    prepare(pytester, limit="1 GiB")
    assert outcomes(pytester)[0] == {"passed": 2}


def test_above_the_limit_the_largest_lines_are_named(pytester: pytest.Pytester) -> None:
    prepare(pytester, limit="512 MiB")
    found, out = outcomes(pytester)
    assert found == {"failed": 1, "passed": 1}
    assert "Device 0 had 969.07 MiB allocated, 457.07 MiB above the limit of 512.00 MiB." in out
    assert "240.09 MiB  scenarios.py:66 forward" in out


def test_a_failing_test_fails_for_its_own_reason(pytester: pytest.Pytester) -> None:
    prepare(pytester, limit="1 MiB", holds=False)
    found, out = outcomes(pytester)
    assert found == {"failed": 1, "passed": 1}
    assert "assert False" in out
    assert "above the limit" not in out


def test_without_cuda_it_is_skipped_with_a_reason(pytester: pytest.Pytester) -> None:
    prepare(pytester, limit="1 GiB", available=False)
    found, out = outcomes(pytester)
    assert found == {"skipped": 1, "passed": 1}
    assert "torch finds no CUDA device here" in out


def test_a_wrong_size_is_a_wrong_call(pytester: pytest.Pytester) -> None:
    prepare(pytester, limit="plenty")
    found, out = outcomes(pytester)
    assert "errors" in found or "failed" in found
    assert "not a size" in out
