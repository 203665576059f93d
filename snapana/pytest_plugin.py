"""A pytest plugin: ``@pytest.mark.limit_vram("2 GiB")`` fails a test that needs more GPU memory than that.

Nothing heavy is imported before a marked test runs.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

_EVENTS = 1_000_000
_SITES = 8


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers",
        "limit_vram(size): record the test's GPU memory, and fail it if its peak of allocated is above size, "
        "such as '2 GiB'; skipped where there is no torch with CUDA.",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a marked test where nothing can be recorded."""
    mark = item.get_closest_marker("limit_vram")
    if mark is None:
        return
    _limit_of(mark)
    missing = _what_is_missing()
    if missing:
        pytest.skip(f"limit_vram: {missing}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Record a marked test, and hold its peak against the limit once it passed."""
    mark = item.get_closest_marker("limit_vram")
    if mark is None:
        yield
        return
    import torch

    limit = _limit_of(mark)
    torch.cuda.synchronize()
    for device in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.memory._record_memory_history(max_entries=_EVENTS, stacks="python")
    try:
        outcome = yield
        if outcome.excinfo is not None:
            return
        torch.cuda.synchronize()
        document = torch.cuda.memory._snapshot()
        peaks = [torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count())]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    over = {device: peak for device, peak in enumerate(peaks) if peak > limit}
    if over:
        outcome.force_exception(pytest.fail.Exception(_explain(document, over, limit), pytrace=False))


def _limit_of(mark: pytest.Mark) -> int:
    from snapana.errors import SnapanaError
    from snapana.units import parse_size

    if len(mark.args) != 1 or mark.kwargs:
        raise pytest.UsageError("limit_vram takes one size, such as limit_vram('2 GiB').")
    try:
        return parse_size(str(mark.args[0]))
    except SnapanaError as error:
        raise pytest.UsageError(f"limit_vram: {error.message}. {error.hint}") from error


def _what_is_missing() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    if not hasattr(torch.cuda.memory, "_record_memory_history"):
        return f"torch {torch.__version__} cannot record memory history"
    return ""


def _explain(document: Any, over: dict[int, int], limit: int) -> str:
    """Say by how much the limit was passed, and which lines held the memory."""
    from snapana.analyses.peak import peak
    from snapana.snapshot.model import InputInfo
    from snapana.snapshot.normalise import normalise
    from snapana.units import format_bytes

    snapshot = normalise(document, InputInfo("this test", "snapshot"))
    lines = []
    for device, most in over.items():
        lines.append(
            f"Device {device} had {format_bytes(most)} allocated, {format_bytes(most - limit)} above the limit of "
            f"{format_bytes(limit)}."
        )
        if device not in snapshot.devices:
            continue
        found = peak(snapshot, device)
        top = found.sites.head(_SITES)
        lines += [f"  {format_bytes(size):>12}  {site}" for size, site in zip(top["bytes"], top["site"], strict=True)]
        rest = found.allocated - int(top["bytes"].sum())
        if rest:
            lines.append(f"  {format_bytes(rest):>12}  others")
    return "\n".join(lines)
