"""Vocabulary-sized blocks of a language model's loss: how many are alive at once."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from snapana.analyses.sites import by_site
from snapana.snapshot.model import Snapshot

# Functions, modules, operators and backward nodes around the loss over the vocabulary.
_LOSS = re.compile(
    r"cross_entropy|nll_loss|log_softmax|lm_head|logits|loss_function|ForCausalLMLoss|"
    r"LogSoftmaxBackward|NllLossBackward|CrossEntropy",
    re.IGNORECASE,
)
# Copies of the logits differ by their element size (bf16, fp32), not by more.
_SPREAD = 2.2
_LEAST = 32 * 2**20


@dataclass(frozen=True)
class Logits:
    """The largest blocks that the loss made.

    Attributes:
        event: the instant.
        bytes: of all of them.
        blocks: how many are alive at once.
        largest: bytes of the largest.
        sites: the blocks by site, as ``by_site``.

    """

    event: int
    bytes: int
    blocks: int
    largest: int
    sites: pd.DataFrame


def logits(snapshot: Snapshot, device: int, event: int) -> Logits | None:
    """Find what the loss holds after an event: blocks of one size, up to a factor of two; None where there are none."""
    lives = snapshot.replay[device].live(event)
    large = lives[lives["size"].to_numpy() >= _LEAST]
    if not len(large):
        return None
    stacks = np.unique(large["stack"].to_numpy())
    of_loss = {int(stack) for stack in stacks if stack >= 0 and _is_loss(snapshot, int(stack))}
    own = large[large["stack"].isin(list(of_loss))]
    if not len(own):
        return None
    largest = int(own["size"].max())
    own = own[own["size"].to_numpy() * _SPREAD >= largest]
    return Logits(event, int(own["size"].sum()), len(own), largest, by_site(snapshot, own))


def _is_loss(snapshot: Snapshot, stack: int) -> bool:
    """Look at the innermost frames only: whatever a training step calls has the loss further out."""
    inner = [frame for frame in snapshot.stacks.frames_of(stack) if frame[3] != "unwinder"]
    python = [frame for frame in inner if frame[1].endswith(".py")][:4]
    return any(_LOSS.search(frame[0]) for frame in (python or inner[:40]))
