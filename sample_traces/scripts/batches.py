"""Record the same small training at several batch sizes.

Run on a machine with a GPU: ``python batches.py FOLDER``. Each recording is a process of its own: convolutions, whose
workspaces differ with the batch, and a transformer under autocast, whose weights are copied in half precision.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

CLASSES, WORDS, WIDTH, LENGTH = 1000, 20011, 768, 256


class Convolutions(nn.Module):
    """Four stages of two convolutions each."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width in (64, 128, 256, 512):
            for _ in range(2):
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(512, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Give the classes' scores."""
        return self.head(self.body(images).mean((2, 3)))


class Transformer(nn.Module):
    """Six encoder layers with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, 0.1, batch_first=True, norm_first=True) for _ in range(6)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Give the next words' scores."""
        length = words.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf"), device=words.device), 1)
        hidden = self.embedding(words)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask)
        return self.head(hidden)


def conv_loss(model: nn.Module, batch: int) -> torch.Tensor:
    images = torch.randn(batch, 3, 112, 112, device="cuda")
    return functional.cross_entropy(model(images), torch.randint(0, CLASSES, (batch,), device="cuda"))


def text_loss(model: nn.Module, batch: int) -> torch.Tensor:
    words = torch.randint(0, WORDS, (batch, LENGTH + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(words[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())


KINDS: dict[str, tuple[type[nn.Module], Callable[[nn.Module, int], torch.Tensor]]] = {
    "conv": (Convolutions, conv_loss),
    "text": (Transformer, text_loss),
}
# Kind, micro-batch, micro-batches a step.
RUNS = [(kind, batch, 1) for kind in KINDS for batch in (6, 16, 48)] + [("conv", 16, 3), ("text", 6, 4)]


def record(folder: Path, kind: str, batch: int, accumulate: int) -> None:
    """Train four steps, and write the snapshot and what PyTorch said."""
    torch.cuda.memory._record_memory_history(max_entries=200_000, stacks="python")
    make, loss_of = KINDS[kind]
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(4):
        for _ in range(accumulate):
            (loss_of(model, batch) / accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    final = {
        what: stats[f"{what}_bytes.all.{when}"]
        for what in ("allocated", "active", "requested", "reserved")
        for when in ("current",)
    }
    final |= {
        f"max_{what}": stats[f"{what}_bytes.all.peak"] for what in ("allocated", "active", "requested", "reserved")
    }
    name = f"{kind}_b{batch}" + (f"_accum{accumulate}" if accumulate > 1 else "")
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))
    properties = torch.cuda.get_device_properties(0)
    truth = {"torch": torch.__version__, "device": properties.name, "total_memory": properties.total_memory}
    truth |= {"micro_batch": batch, "accumulation_steps": accumulate, "final": final}
    (folder / f"{name}.truth.json").write_text(json.dumps(truth, indent=1))


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        record(folder, sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    for run in RUNS:
        subprocess.run([sys.executable, __file__, str(folder), *map(str, run)], check=True)


if __name__ == "__main__":
    main()
