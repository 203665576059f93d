"""Runs a training script under a recording, without touching it."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snapana.recording.recorder import Recording, _backend


def run_script(
    arguments: Sequence[str],
    *,
    module: bool = False,
    output: str = "profil_vram.pickle",
    steps: bool | int = True,
    every: int | None = None,
    max_entries: int | None = None,
    trace: str | None = None,
    trace_steps: tuple[int, int] = (2, 2),
) -> int:
    """Run a script, or a module, as ``python`` would, and record it.

    Args:
        arguments: the script and its own arguments.
        module: whether the first argument is a module, as for ``python -m``.
        output: file to write.
        steps: mark each ``optimizer.step()``; a number makes room for so many.
        every: write after each so many steps.
        max_entries: size of the ring.
        trace: file of a profiler trace to write as well.
        trace_steps: steps to wait before the trace begins, and steps that it takes.

    Returns:
        The script's exit code: 1 where it ended with an exception, which is printed as Python prints it.

    """
    script = arguments[0]
    sys.argv = [script, *arguments[1:]]
    # As python itself does: a script's folder, or the current one for a module.
    sys.path[0] = "" if module else str(Path(script).resolve().parent)
    recording = Recording(output, steps=steps, every=every, max_entries=max_entries)
    try:
        with recording:
            hook = _Hook(recording, trace, trace_steps)
            with recording._harmless("watching optimizers"):
                hook.attach()
            try:
                if module:
                    runpy.run_module(script, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(script, run_name="__main__")
            finally:
                with recording._harmless("ending the trace"):
                    hook.detach()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BaseException:
        _print_own_frames()
        return 1
    return 0


def _print_own_frames() -> None:
    """Print the exception as Python would, without the frames that ran the script."""
    kind, error, trace = sys.exc_info()
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


def _is_ours(filename: str) -> bool:
    return filename.startswith("<frozen runpy") or Path(filename).parent == Path(__file__).parent


class _Hook:
    """Ends a step with each step of the first optimizer that makes one, and profiles some of them."""

    def __init__(self, recording: Recording, trace: str | None, trace_steps: tuple[int, int]) -> None:
        self._recording = recording
        self._trace = trace
        self._wait, self._take = trace_steps
        self._owner: int | None = None
        self._count = 0
        self._profiler: Any = None
        self._handle: Any = None

    def attach(self) -> None:
        """Watch all optimizers, where torch can."""
        backend, _ = _backend()
        if backend is None:
            return
        try:
            from torch.optim.optimizer import register_optimizer_step_post_hook
        except ImportError:
            return
        self._handle = register_optimizer_step_post_hook(self._stepped)

    def detach(self) -> None:
        """Let go, and write a trace that has not taken all of its steps."""
        if self._handle is not None:
            self._handle.remove()
        self._end_trace()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._owner is None:
            self._owner = id(optimizer)
        if id(optimizer) != self._owner:
            return
        self._count += 1
        self._recording.step()
        with self._recording._harmless("profiling"):
            if self._trace is not None and self._count == self._wait:
                self._begin_trace()
            elif self._count == self._wait + self._take:
                self._end_trace()

    def _begin_trace(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profiler = profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            profile_memory=True,
            record_shapes=True,
            with_stack=True,
        )
        self._profiler.__enter__()

    def _end_trace(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None or self._trace is None:
            return
        profiler.__exit__(None, None, None)
        target = _own_name(Path(self._trace))
        profiler.export_chrome_trace(str(target))
        print(f"snapana: wrote {target}", file=sys.stderr)


def _own_name(path: Path) -> Path:
    """Give a name that no other rank and no earlier run has."""
    from snapana.recording.recorder import _now, _ranks

    rank, _, world = _ranks()
    endings = "".join(path.suffixes)
    stem = path.name.removesuffix(endings)
    if rank is not None and (world or 2) > 1:
        return path.with_name(f"{stem}-rank{rank}-{_now()}{endings}")
    return path.with_name(f"{stem}-{_now()}{endings}") if path.exists() else path
