"""``snapana.record``: a recording that begins early, is large enough, and is written when it matters.

Nothing here may harm the training: whatever fails is told by a warning, and the training goes on. Only torch and the
standard library are needed.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from snapana._version import __version__

Function = TypeVar("Function", bound=Callable[..., Any])

# Enough for some tens of steps of most models, in about a gigabyte of the host's memory at most.
MAX_ENTRIES = 1_000_000
# Programs that catch failures in a loop are not to write files all the time.
_EAGER_DUMPS = 3
_PAUSE_SECONDS = 60.0
# A step's entries are counted between these steps, when everything is warm.
_COUNTED = (2, 3)

_active: list[Recording] = []
_observed: set[str] = set()


class Recording:
    """One recording of this process; see ``record``.

    Attributes:
        path: the file that was written last, None until there is one.

    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "profil_vram.pickle",
        *,
        steps: bool | int = True,
        every: int | None = None,
        max_entries: int | None = None,
        stacks: str = "python",
        signals: bool = True,
    ) -> None:
        self._arguments = {
            "path": path,
            "steps": steps,
            "every": every,
            "max_entries": max_entries,
            "stacks": stacks,
            "signals": signals,
        }
        self.path: Path | None = None
        self._wanted = Path(path)
        self._steps = steps
        self._every = every
        self._entries = max_entries or MAX_ENTRIES
        self._stacks = stacks
        self._signals = signals
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._backend: Any = None
        self._memory: Any = None
        self._mark: Any = None
        self._step = 0
        self._counted: dict[int, int] = {}
        self._dumps = 0
        self._last_dump = 0.0
        self._failed: dict[str, Any] | None = None
        self._message: str | None = None
        self._before = 0
        self._handlers: dict[int, Any] = {}

    # ---- for the training

    def __enter__(self) -> Self:
        """Begin to record."""
        with self._harmless("beginning to record"):
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the end, unless a failure was written already; the exception goes on."""
        with self._harmless("writing the recording"):
            self._finish(error)
        with self._harmless("ending the recording"):
            self._stop()

    def __call__(self, function: Function) -> Function:
        """Record each call of a function, as a decorator."""

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with Recording(**self._arguments):  # type: ignore[arg-type]
                return function(*args, **kwargs)

        return recorded  # type: ignore[return-value]

    def step(self) -> None:
        """Mark the end of a training step."""
        if self._memory is None:
            return
        with self._harmless("marking a step"):
            self._step += 1
            if self._steps:
                self._mark_step()
                self._fit_ring()
            if self._every and self._step % self._every == 0:
                self.dump("every")

    def dump(self, reason: str = "asked") -> Path | None:
        """Write what was recorded so far; give the file, None if that failed."""
        if self._memory is None:
            return None
        with self._harmless("writing the recording"):
            return self._dump(reason)
        return None

    # ---- beginning and end

    @contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            warnings.warn(
                f"snapana: {what} failed ({type(error).__name__}: {error}); the training goes on",
                RuntimeWarning,
                stacklevel=4,
            )

    def _start(self) -> None:
        self._reset()
        backend, why = _backend()
        if backend is None:
            warnings.warn(f"snapana: {why}; nothing is recorded", RuntimeWarning, stacklevel=4)
            return
        memory = backend.memory
        self._before = _allocated(backend)
        if self._before:
            warnings.warn(
                f"snapana: {self._before:,} bytes were allocated before the recording began: their lines stay unknown",
                RuntimeWarning,
                stacklevel=4,
            )
        _begin(memory, self._entries, self._stacks)
        self._backend, self._memory = backend, memory
        _active.append(self)
        _observe(backend)
        if self._signals:
            self._take_signals()
        if self._steps:
            self._mark_step()

    def _finish(self, error: BaseException | None) -> None:
        if self._memory is None:
            return
        self._close_mark()
        if error is not None and _is_out_of_memory(error) and self._failed is not None:
            # Written at the failure; by now the stack has unwound and tensors are gone.
            self._message = str(error)
            if self.path is not None:
                self._write_sidecar(self.path, "oom")
            return
        if error is not None and _is_out_of_memory(error):
            self._message = str(error)
        reason = "end" if error is None else "exit" if isinstance(error, SystemExit) else "exception"
        self._dump(reason)

    def _stop(self) -> None:
        if self in _active:
            _active.remove(self)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
        if self._memory is not None:
            memory, self._memory = self._memory, None
            memory._record_memory_history(enabled=None)

    # ---- steps

    def _mark_step(self) -> None:
        from torch.autograd.profiler import record_function

        self._close_mark()
        self._mark = record_function(f"ProfilerStep#{self._step}")
        self._mark.__enter__()

    def _close_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    def _fit_ring(self) -> None:
        """Make room for as many steps as were asked for, once it is known what a step takes."""
        if isinstance(self._steps, bool) or self._step not in _COUNTED:
            return
        self._counted[self._step] = max((len(trace) for trace in self._memory._snapshot()["device_traces"]), default=0)
        first, last = (self._counted.get(step, 0) for step in _COUNTED)
        # A ring that went round already would lose its order.
        if self._step != _COUNTED[-1] or last >= self._entries:
            return
        needed = int((last - first) * self._steps * 1.1) + first
        if needed > self._entries:
            self._entries = needed
            _begin(self._memory, needed, self._stacks)

    # ---- writing

    def out_of_memory(self, device: int, requested: int, allowed: int, free: int) -> None:
        """Write at the failure, before the exception unwinds: called by the observer."""
        if self._memory is None:
            return
        self._failed = {
            "device": int(device),
            "requested_bytes": int(requested),
            "allowed_bytes": int(allowed),
            "free_bytes": int(free),
        }
        now = time.monotonic()
        if self._dumps >= _EAGER_DUMPS and now - self._last_dump < _PAUSE_SECONDS:
            return
        self._dumps += 1
        with self._harmless("writing at the failure"):
            self._dump("oom")
        self._last_dump = time.monotonic()

    def _dump(self, reason: str) -> Path | None:
        # A signal may come while a file is being written.
        if not self._lock.acquire(blocking=False):
            return None
        try:
            document = self._memory._snapshot()
            target = self._target(reason)
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            with draft.open("wb") as stream:
                pickle.dump(document, stream, protocol=4)
            draft.replace(target)
            self.path = target
            self._write_sidecar(target, reason)
            print(f"snapana: wrote {target} ({reason})", file=sys.stderr)
            return target
        finally:
            self._lock.release()

    def _target(self, reason: str) -> Path:
        """Name the file: never over one that this recording did not write, one of its own for each rank."""
        rank, _, world = _ranks()
        base = self._wanted
        if rank is not None and (world or 2) > 1:
            base = base.with_name(f"{base.stem}-rank{rank}-pid{os.getpid()}-{_now()}{base.suffix}")
        if self.path is not None:
            # The state at a failure is worth more than the end of a program that survived it.
            survived = self._failed is not None and self._dumps and reason != "oom"
            return self.path.with_name(f"{self.path.stem}-{reason}{self.path.suffix}") if survived else self.path
        if base.exists():
            base = base.with_name(f"{base.stem}-pid{os.getpid()}-{_now()}{base.suffix}")
        return base

    def _write_sidecar(self, target: Path, reason: str) -> None:
        rank, local_rank, world = _ranks()
        document = {
            "snapana_sidecar": 1,
            "snapana": __version__,
            **_versions(),
            "devices": _devices(self._backend),
            "rank": rank,
            "local_rank": local_rank,
            "world_size": world,
            "conf": os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "",
            "reason": reason,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "max_entries": self._entries,
            "steps": self._step,
            "allocated_before_bytes": self._before,
            "oom": self._failed,
            "message": self._message,
        }
        place = target.with_name(f"{target.name}.json")
        draft = place.with_name(f".{place.name}.{os.getpid()}")
        draft.write_text(json.dumps(document, indent=1))
        draft.replace(place)

    # ---- signals

    def _take_signals(self) -> None:
        """Write on SIGUSR1, and before SIGTERM ends the process; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name, handler in (("SIGUSR1", self._on_usr1), ("SIGTERM", self._on_term)):
            number = getattr(signal, name, None)
            if number is not None:
                self._handlers[number] = signal.signal(number, handler)

    def _on_usr1(self, number: int, frame: FrameType | None) -> None:
        self.dump("signal")
        earlier = self._handlers.get(number)
        if callable(earlier):
            earlier(number, frame)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.dump("signal")
        earlier = self._handlers.pop(number, signal.SIG_DFL)
        signal.signal(number, earlier if earlier is not None else signal.SIG_DFL)
        os.kill(os.getpid(), number)


record = Recording


# ---- torch


def _backend() -> tuple[Any, str]:
    """Give the module of the accelerator, or None and why there is none."""
    try:
        import torch
    except ImportError:
        return None, "torch is not installed (pip install 'snapana[record]')"
    if torch.cuda.is_available():
        if hasattr(torch.cuda.memory, "_record_memory_history"):
            return torch.cuda, ""
        return None, f"torch {torch.__version__} cannot record memory history"
    xpu = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_available():
        if hasattr(getattr(xpu, "memory", None), "_record_memory_history"):
            return xpu, ""
        return None, f"torch {torch.__version__} cannot record memory history on XPU"
    return None, f"torch {torch.__version__} finds no CUDA device here"


def _begin(memory: Any, entries: int, stacks: str) -> None:
    try:
        memory._record_memory_history(enabled="all", context="all", stacks=stacks, max_entries=entries)
    except TypeError:
        # Before torch 2.1.
        memory._record_memory_history(True, trace_alloc_max_entries=entries, trace_alloc_record_context=True)


def _observe(backend: Any) -> None:
    """Attach the observer, once in a process: torch can not detach one."""
    import torch

    name = "cuda" if backend is torch.cuda else "xpu"
    attach = getattr(torch._C, f"_{name}_attach_out_of_memory_observer", None)
    if attach is None or name in _observed:
        return
    attach(_out_of_memory)
    _observed.add(name)


def _out_of_memory(device: int, requested: int, allowed: int, free: int) -> None:
    for one in list(_active):
        one.out_of_memory(device, requested, allowed, free)


def _is_out_of_memory(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "out of memory" in str(error)


def _allocated(backend: Any) -> int:
    """Sum what is allocated on all devices, without waking one that is not in use."""
    if not backend.is_initialized():
        return 0
    return sum(int(backend.memory_allocated(device)) for device in range(backend.device_count()))


def _versions() -> dict[str, Any]:
    import torch

    return {
        "torch": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "python": ".".join(map(str, sys.version_info[:3])),
    }


def _devices(backend: Any) -> list[dict[str, Any]]:
    """Describe the devices in use; asking about others would make a context on them."""
    found = []
    for device in range(backend.device_count()):
        peak = int(backend.max_memory_reserved(device))
        if not peak:
            continue
        properties = backend.get_device_properties(device)
        total = int(properties.total_memory)
        share = getattr(backend.memory, "get_per_process_memory_fraction", lambda device: None)(device)
        free = None
        if hasattr(backend, "mem_get_info"):
            free = int(backend.mem_get_info(device)[0])
        found.append(
            {
                "device": device,
                "name": str(properties.name),
                "total_bytes": total,
                "free_bytes": free,
                "limit_known": share is not None,
                # PyTorch rounds the product down.
                "limit_bytes": int(share * total) if share is not None and share < 1 else None,
                "peak_allocated_bytes": int(backend.max_memory_allocated(device)),
                "peak_reserved_bytes": peak,
            }
        )
    return found


# ---- the process


def _ranks() -> tuple[int | None, int | None, int | None]:
    """Give rank, local rank and number of processes, as launchers tell them."""

    def first(*names: str) -> int | None:
        for name in names:
            value = os.environ.get(name, "")
            if value.isdigit():
                return int(value)
        return None

    return (
        first("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"),
        first("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
        first("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    )


def _now() -> str:
    return time.strftime("%Y%m%dT%H%M%S")
