"""Code to paste: how a recording is made so that it answers."""

from __future__ import annotations

from dataclasses import dataclass

# Snippets are for the newest torch; older ones spell some things differently.
_SINCE_SKIP = (2, 1)


@dataclass(frozen=True)
class Snippet:
    """One thing to paste.

    Attributes:
        topic: its name on the command line.
        about: what it is for, in a line.
        code: at most 12 lines.

    """

    topic: str
    about: str
    code: str


def snippets(torch: tuple[int, int] | None = None, entries: int = 1_000_000) -> dict[str, Snippet]:
    """Give all snippets by topic.

    Args:
        torch: version, if known; the newest by default.
        entries: size of the ring to be written into them.

    """
    begin = f'torch.cuda.memory._record_memory_history(max_entries={entries:_}, stacks="python")'
    end = "torch.cuda.memory._record_memory_history(enabled=None)"
    if torch is not None and torch < _SINCE_SKIP:
        begin = f"torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries={entries:_})"
        end = "torch.cuda.memory._record_memory_history(None)"
    found = (
        Snippet(
            "snapshot",
            "a snapshot of a whole run: begun before the model is built, with Python stacks",
            f"""import torch

{begin}
model = build_model().cuda()  # yours: begin before it
try:
    train(model)  # yours
finally:
    torch.cuda.memory._dump_snapshot("profil_vram.pickle")
    {end}""",
        ),
        Snippet(
            "oom",
            "a snapshot at the failure itself, before the exception unwinds and tensors are freed",
            f"""import torch

{begin}


def on_oom(device, requested, allowed, free):
    torch.cuda.memory._dump_snapshot("profil_vram.pickle")


torch._C._cuda_attach_out_of_memory_observer(on_oom)
train()  # yours""",
        ),
        Snippet(
            "steps",
            "steps that the report can tell apart, so that leaks are told from caches",
            """import torch

for step, batch in enumerate(loader):  # yours
    with torch.profiler.record_function(f"ProfilerStep#{step}"):
        train_step(batch)  # yours""",
        ),
        Snippet(
            "record",
            "all of that by snapana: begin, steps, failure, signals, one file for each rank",
            """import snapana

with snapana.record("profil_vram.pickle") as recording:
    model = build_model().cuda()  # yours
    for batch in loader:
        train_step(model, batch)  # yours
        recording.step()""",
        ),
        Snippet(
            "trace",
            "a profiler trace with memory and stacks, to be joined with a snapshot of the same run",
            """from torch.profiler import ProfilerActivity, profile

activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
    for _ in range(3):
        train_step()  # yours
        profiler.step()
profiler.export_chrome_trace("run.json.gz")""",
        ),
        Snippet(
            "ranks",
            "several processes: each writes a file of its own",
            f"""import os
import torch

{begin}
try:
    train()  # yours
finally:
    rank = os.environ.get("RANK", "0")
    torch.cuda.memory._dump_snapshot(f"profil_vram_rank{{rank}}.pickle")""",
        ),
        Snippet(
            "lightning",
            "a callback for Lightning's Trainer(callbacks=[Memory()])",
            """import snapana
from lightning.pytorch.callbacks import Callback


class Memory(Callback):
    def setup(self, trainer, module, stage):
        self.recording = snapana.record("profil_vram.pickle").__enter__()
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.recording.step()
    def teardown(self, trainer, module, stage):
        self.recording.__exit__(None, None, None)""",
        ),
        Snippet(
            "vllm",
            "a server such as vLLM: one process, requests marked as steps",
            """import snapana
from vllm import LLM

with snapana.record("profil_vram.pickle") as recording:
    llm = LLM(model="facebook/opt-125m", enforce_eager=True)
    for prompts in batches:  # yours
        llm.generate(prompts)
        recording.step()  # set VLLM_ENABLE_V1_MULTIPROCESSING=0""",
        ),
    )
    return {snippet.topic: snippet for snippet in found}


def installed_torch() -> tuple[int, int] | None:
    """Give the version of the installed torch, without importing it; None if there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        parts = version("torch").split(".")
        return int(parts[0]), int(parts[1])
    except (PackageNotFoundError, ValueError, IndexError):
        return None
