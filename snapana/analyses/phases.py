"""What a stack says about the phase of training that it belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from snapana.snapshot.model import Snapshot

BoolArray = npt.NDArray[np.bool_]

_OPTIM = re.compile(r"/torch/optim/|/(?:apex|bitsandbytes)/optim|/deepspeed/ops/(?:adam|lion|lamb)|/optimizers?/")
_MODULE = "torch/nn/modules/module.py"
_BUILD = {
    "__init__",
    "reset_parameters",
    "from_pretrained",
    "load_state_dict",
    "_load_pretrained_model",
    "to_empty",
    "_init_weights",
    "init_weights",
    "__deepcopy__",
    "deepcopy",
}
_CONVOLUTION = re.compile(r"^_?conv(?:_transpose)?[123]d$|^_conv_forward$|convolution")
_WORKSPACE = re.compile(
    r"cublas\w*Workspace|CUDABlasHandle|WorkspaceForHandle|getChosenWorkspaceSize|cudnn\w*workspace", re.IGNORECASE
)
_CUDNN = re.compile(r"cudnn|miopen", re.IGNORECASE)
# Constructors there belong to compilation, not to a model.
_COMPILER = re.compile(r"/torch/(?:_inductor|_dynamo|_functorch|_higher_order_ops|cuda)/")
_NODE = re.compile(r"Backward\d*(?:::|$)|autograd::Engine|evaluate_function|AccumulateGrad")


_CHECKPOINT = "torch/utils/checkpoint.py"
_APPLIES = re.compile(r"Backward\d*::apply\(\)$")


@dataclass(frozen=True)
class StackTraits:
    """Traits of each stack of a file; the last element of each array stands for no stack at all.

    Attributes:
        python: has a Python frame.
        optimizer: within an optimizer's code.
        zero_grad: within ``zero_grad``.
        apply: within ``Module._apply``: ``.cuda()``, ``.to()``, ``.half()``.
        build: within a constructor, ``load_state_dict``, ``from_pretrained`` or a copy.
        module: within a call of a module, another ``forward``, or compiled code.
        backward: in the backward pass: autograd's frames, or no Python at all.
        data_parallel: the innermost Python frame is DistributedDataParallel's own: its buckets.
        convolution: the innermost Python frame is a convolution, or cuDNN is below it.
        workspace: C++ frames that make workspaces.
        functional: within ``torch.nn.functional``, where losses are.
        direct: the innermost Python frame is the user's: the operator was called there.

    """

    python: BoolArray
    optimizer: BoolArray
    zero_grad: BoolArray
    apply: BoolArray
    build: BoolArray
    module: BoolArray
    backward: BoolArray
    data_parallel: BoolArray
    convolution: BoolArray
    workspace: BoolArray
    functional: BoolArray
    direct: BoolArray


def stack_traits(snapshot: Snapshot) -> StackTraits:
    """Look at every distinct stack of the file once."""
    count = len(snapshot.stacks.stacks)
    rows = [_traits(snapshot.stacks.frames_of(stack)) for stack in range(count)]
    # No stack: most often the backward thread, which has no Python; see `categories` for when that holds.
    rows.append({"backward"})
    return StackTraits(
        **{one.name: np.array([one.name in row for row in rows], dtype=bool) for one in fields(StackTraits)}
    )


def _traits(frames: Sequence[tuple[str, str, int, str]]) -> set[str]:
    python = [
        (name, path.replace("\\", "/"), kind) for name, path, _, kind in frames if kind not in {"cpp", "unwinder"}
    ]
    native = [name for name, _, _, kind in frames if kind == "cpp"]
    found = {"python"} if python else set()
    for name, path, kind in python:
        if _OPTIM.search(path):
            found.add("optimizer")
        if name == "zero_grad":
            found.add("zero_grad")
        if path.endswith(_MODULE) and name == "_apply":
            found.add("apply")
        if name in _BUILD and not _COMPILER.search(path):
            found.add("build")
        if name == "forward" or kind == "generated" or (path.endswith(_MODULE) and name == "_call_impl"):
            found.add("module")
        if path.endswith("torch/nn/functional.py"):
            found.add("functional")
        if name in {"backward", "post_backward"} and kind in {"torch", "library"}:
            found.add("backward")
    if python:
        innermost, place, kind = python[0]
        if place.endswith("torch/nn/parallel/distributed.py"):
            found.add("data_parallel")
        if _CONVOLUTION.search(innermost):
            found.add("convolution")
        if kind == "user":
            found.add("direct")
    elif not native or any(_NODE.search(name) for name in native):
        found.add("backward")
    if any(_APPLIES.search(name) for name in native):
        # A trace gives a backward operator the lines of its forward one.
        found.add("backward")
        found.discard("module")
    if any(_CUDNN.search(name) for name in native):
        found.add("convolution")
    if any(_WORKSPACE.search(name) for name in native[:40]):
        found.add("workspace")
    return found


def checkpoints(snapshot: Snapshot) -> bool:
    """Whether any stack passes through PyTorch's activation checkpointing."""
    files = snapshot.stacks.frames["filename"].str.replace("\\", "/", regex=False)
    return bool(files.str.endswith(_CHECKPOINT).any())
