"""Programs to record with ``snapana.record``: a leak, a failure, a killed process; with its price.

Run on a machine with a GPU, from the checkout: ``python sample_traces/scripts/recorded.py FOLDER``.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

import snapana

HERE = Path(__file__)
CHECKOUT = HERE.parent.parent.parent
GIB = 1024**3


class Net(nn.Module):
    """Six blocks of two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add each block's output."""
        for block in self.blocks:
            x = x + block(x)
        return x


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> None:
    """Do one step."""
    x = torch.randn(batch, 1024, device="cuda")
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build model and optimizer."""
    model = Net().cuda()
    return model, torch.optim.AdamW(model.parameters())


kept: list[torch.Tensor] = []


def keep_statistics() -> None:
    """Leak a mebibyte."""
    kept.append(torch.zeros(1024**2, dtype=torch.uint8, device="cuda"))


def leak(folder: str) -> None:
    """Twelve steps that leak."""
    with snapana.record(f"{folder}/record_leak.pickle", steps=30) as recording:
        model, optimizer = make()
        for _ in range(12):
            train_step(model, optimizer, 256)
            keep_statistics()
            recording.step()


def out_of_memory(folder: str) -> None:
    """Grow the batch under a limit of 2 GiB until it does not fit."""
    limit_memory(2 * GIB)
    with snapana.record(f"{folder}/record_oom.pickle") as recording:
        model, optimizer = make()
        batch = 256
        while True:
            train_step(model, optimizer, batch)
            recording.step()
            batch *= 2


def limit_memory(size: int) -> None:
    """Let PyTorch reserve no more than that."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(size / total)


def killed(folder: str) -> None:
    """Train until someone ends the process."""
    with snapana.record(f"{folder}/record_killed.pickle") as recording:
        model, optimizer = make()
        for step in range(100_000):
            train_step(model, optimizer, 256)
            recording.step()
            if step == 20:
                torch.cuda.synchronize()
                print("ready", flush=True)


def plain(folder: str) -> None:
    """A script that knows nothing of being recorded: it runs into a limit of 2 GiB."""
    limit_memory(2 * GIB)
    model, optimizer = make()
    for step in range(12):
        train_step(model, optimizer, 256 << step)


def overhead(folder: str) -> None:
    """Time steps with and without a recording, in turn."""
    model, optimizer = make()

    def steps(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            train_step(model, optimizer, 256)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count * 1e3

    steps(20)
    bare, recorded = [], []
    for _ in range(7):
        bare.append(steps(60))
        memory = torch.cuda.memory
        memory._record_memory_history(max_entries=1_000_000, stacks="python")
        recorded.append(steps(60))
        memory._record_memory_history(enabled=None)
    print(
        f"overhead: {statistics.median(bare):.3f} ms a step without, {statistics.median(recorded):.3f} ms with a "
        f"recording: {statistics.median(with_ / without for with_, without in zip(recorded, bare, strict=True)):.3f} x"
    )


def main() -> None:
    """Run one scenario, or all."""
    folder = sys.argv[1]
    if len(sys.argv) > 2:
        globals()[sys.argv[2]](folder)
        return
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    for name in ("leak", "out_of_memory", "overhead"):
        done = subprocess.run(
            [sys.executable, str(HERE), folder, name], env=environment, capture_output=True, text=True
        )
        print(json.dumps({"scenario": name, "exit": done.returncode, "said": (done.stdout + done.stderr)[-1500:]}))
    process = subprocess.Popen([sys.executable, str(HERE), folder, "killed"], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGUSR1)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    print(json.dumps({"scenario": "killed", "exit": process.wait()}))
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", sys.executable]
    launch += ["-m", "snapana.recording", str(HERE), folder, "plain"]
    done = subprocess.run(
        [sys.executable, *launch], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    print(json.dumps({"scenario": "torchrun", "exit": done.returncode, "said": (done.stdout + done.stderr)[-2500:]}))


if __name__ == "__main__":
    main()
