"""What a recording made by ``snapana.record`` says beside its file: all that the pickle lacks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapana.plain import plain_text

# Ours are smaller by far.
_LARGEST = 1024**2


@dataclass(frozen=True)
class SidecarDevice:
    """One device.

    Attributes:
        device: ordinal.
        name: such as ``NVIDIA H200``.
        total: bytes of the card.
        limit: the most that PyTorch might reserve, None for no limit.
        limit_known: whether torch told the limit.

    """

    device: int
    name: str
    total: int
    limit: int | None
    limit_known: bool


@dataclass(frozen=True)
class Sidecar:
    """What was known when a file was written.

    Attributes:
        torch: version.
        devices: those in use.
        rank: of the process, None outside of a job.
        world_size: processes of the job, None likewise.
        conf: ``PYTORCH_CUDA_ALLOC_CONF`` as it was in the environment.
        reason: why the file was written: ``end``, ``exception``, ``exit``, ``oom``, ``signal``, ``every`` or ``asked``.
        message: PyTorch's out-of-memory message, None if there was none.
        max_entries: size of the ring.
        steps: marked.
        allocated_before: bytes that were allocated before the recording began.

    """

    torch: str
    devices: tuple[SidecarDevice, ...]
    rank: int | None
    world_size: int | None
    conf: str
    reason: str
    message: str | None
    max_entries: int | None
    steps: int | None
    allocated_before: int | None


def read_sidecar(path: Path) -> Sidecar | None:
    """Read what stands beside a file, as ``FILE.json``; None where there is nothing, or nothing of ours.

    A packed ``FILE.pickle.xz`` has its sidecar at ``FILE.pickle.json`` or ``FILE.pickle.xz.json``.
    """
    names = [
        path.name,
        *(path.name.removesuffix(end) for end in (".xz", ".gz", ".zst", ".zip") if path.name.endswith(end)),
    ]
    for name in names:
        found = _read(path.with_name(f"{name}.json"))
        if found is not None:
            return found
    return None


def _read(path: Path) -> Sidecar | None:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("snapana_sidecar") != 1:
        return None
    devices = document.get("devices")
    return Sidecar(
        torch=_text(document.get("torch")),
        devices=tuple(
            SidecarDevice(
                device=device,
                name=_text(one.get("name")),
                total=total,
                limit=_whole(one.get("limit_bytes")),
                limit_known=one.get("limit_known") is True,
            )
            for one in (devices if isinstance(devices, list) else [])[:64]
            if isinstance(one, dict)
            and (device := _whole(one.get("device"))) is not None
            and (total := _whole(one.get("total_bytes"))) is not None
        ),
        rank=_whole(document.get("rank")),
        world_size=_whole(document.get("world_size")),
        conf=_text(document.get("conf")),
        reason=_text(document.get("reason")),
        message=_text(document.get("message"), 10_000) or None,
        max_entries=_whole(document.get("max_entries")),
        steps=_whole(document.get("steps")),
        allocated_before=_whole(document.get("allocated_before_bytes")),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def _text(value: Any, longest: int = 500) -> str:
    return plain_text(value)[:longest] if isinstance(value, str) else ""
