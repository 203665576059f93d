"""What several tests share."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import snapana
from snapana import Snapshot

CHECKOUT = Path(__file__).parent.parent
SAMPLES = CHECKOUT / "sample_traces"


@cache
def load_sample(name: str) -> Snapshot:
    """Load a sample once for all tests."""
    return snapana.load(SAMPLES / f"{name}.pickle.xz")


@cache
def truth_of(name: str) -> dict[str, Any]:
    """Give PyTorch's own figures of a sample."""
    truth: dict[str, Any] = json.loads((SAMPLES / f"{name}.truth.json").read_text())
    return truth


@pytest.fixture(scope="session")
def samples() -> Path:
    """Give the folder of sample recordings."""
    return SAMPLES
