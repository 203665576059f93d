"""A stand-in for the parts of torch that the recorder calls, with the signatures of torch 2.13.

``tests/test_peer.py`` holds the signatures against the real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.builders import History


class Memory:
    """``torch.cuda.memory``: records what a ``History`` does."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch

    def _record_memory_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        device: Any = None,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: list[str] | None = None,
    ) -> None:
        if self._torch.broken:
            raise RuntimeError("no history today")
        self._torch.calls.append(("history", enabled, max_entries if enabled else None))
        self._torch.history.recording = enabled is not None

    def _snapshot(self, device: Any = None, augment_with_fx_traces: bool = False) -> Any:
        if self._torch.broken:
            raise RuntimeError("no snapshot today")
        return self._torch.history.document()

    def get_per_process_memory_fraction(self, device: Any = None) -> float:
        return self._torch.fraction


class Torch:
    """Puts itself in torch's place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.history = History(recording=False)
        self.available = True
        self.broken = False
        self.fraction = 1.0
        self.before = 0
        self.calls: list[tuple[Any, ...]] = []
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.marks: list[str] = []
        self.hooks: list[Callable[[Any, Any, Any], None]] = []
        standin = self

        class RecordFunction:
            """``torch.autograd.profiler.record_function``."""

            def __init__(self, name: str, args: str | None = None) -> None:
                self.name = name

            def __enter__(self) -> RecordFunction:
                standin.marks.append(f"+{self.name}")
                standin.annotate("START", self.name)
                return self

            def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
                standin.marks.append(f"-{self.name}")
                standin.annotate("END", self.name)

        cuda = SimpleNamespace(
            memory=Memory(self),
            is_available=lambda: self.available,
            is_initialized=lambda: True,
            device_count=lambda: 1,
            memory_allocated=lambda device=None: self.before,
            max_memory_allocated=lambda device=None: self.history.sim.allocated,
            max_memory_reserved=lambda device=None: self.history.sim.peak_reserved,
            get_device_properties=lambda device=None: SimpleNamespace(name="Stand-in 9000", total_memory=8 * 2**30),
            mem_get_info=lambda device=None: (2**30, 8 * 2**30),
        )
        root = ModuleType("torch")
        root.__dict__.update(
            __version__="2.13.0",
            cuda=cuda,
            xpu=SimpleNamespace(is_available=lambda: False),
            version=SimpleNamespace(cuda="13.0", hip=None),
            _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=self.observers.append),
        )
        profiler = ModuleType("torch.autograd.profiler")
        profiler.__dict__["record_function"] = RecordFunction
        optimizer = ModuleType("torch.optim.optimizer")
        optimizer.__dict__["register_optimizer_step_post_hook"] = self._register
        for name, module in (
            ("torch", root),
            ("torch.autograd", ModuleType("torch.autograd")),
            ("torch.autograd.profiler", profiler),
            ("torch.optim", ModuleType("torch.optim")),
            ("torch.optim.optimizer", optimizer),
        ):
            monkeypatch.setitem(sys.modules, name, module)
        from snapana.recording import recorder

        monkeypatch.setattr(recorder, "_observed", set())
        monkeypatch.setattr(recorder, "_active", [])

    def _register(self, hook: Callable[[Any, Any, Any], None]) -> Any:
        self.hooks.append(hook)
        return SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def annotate(self, stage: str, name: str) -> None:
        """Note an annotation as the recorder's callback does."""
        self.history.annotations.append({"stage": stage, "name": name, "device": 0, "time_us": self.history.time_us})

    def fail(self, size: int) -> None:
        """Fail as the allocator does: the observer is called, then the exception thrown."""
        for observer in self.observers:
            observer(0, size, 2**30, 2**20)
        raise OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU 0 has a total capacity of 8.00 GiB of "
            "which 1.00 MiB is free. Of the allocated memory 1.00 GiB is allocated by PyTorch, and 0 bytes is reserved "
            "by PyTorch but unallocated."
        )


class OutOfMemoryError(RuntimeError):
    """``torch.OutOfMemoryError``."""
