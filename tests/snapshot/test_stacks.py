"""What a frame is, and which line a stack is attributed to."""

from __future__ import annotations

import pytest

from snapana.snapshot.stacks import StackInterner, classify_frame, find_site
from tests.conftest import load_sample

VENV = "/home/u/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("name", "filename", "kind"),
    [
        ("train", "/home/u/train.py", "user"),
        ("<module>", "<stdin>", "user"),
        ("f", r"C:\Users\u\train.py", "user"),
        ("f", f"{VENV}/transformers/trainer.py", "library"),
        ("f", r"C:\venv\Lib\site-packages\transformers\trainer.py", "library"),
        ("forward", f"{VENV}/torch/nn/modules/linear.py", "torch"),
        ("run", "/usr/lib/python3.12/threading.py", "stdlib"),
        ("f", "<frozen importlib._bootstrap>", "stdlib"),
        ("call", "/tmp/torchinductor_u/ab/cabc.py", "generated"),
        ("forward", "<eval_with_key>.12", "generated"),
        ("at::native::add", "??", "cpp"),
        ("at::native::add", "Add.cpp", "cpp"),
        ("torch::unwind::unwind()", "??", "unwinder"),
        ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", "unwinder"),
    ],
)
def test_kinds_of_frames(name: str, filename: str, kind: str) -> None:
    assert classify_frame(name, filename) == kind


def site(*frames: tuple[str, str]) -> str:
    return find_site([(name, file, 7, classify_frame(name, file)) for name, file in frames]).label


def test_the_innermost_line_of_the_user_wins() -> None:
    torch_frame = ("forward", f"{VENV}/torch/nn/modules/linear.py")
    library = ("step", f"{VENV}/lightning/loop.py")
    assert site(torch_frame, ("loss", "/h/a.py"), ("main", "/h/b.py")) == "a.py:7 loss"
    assert site(torch_frame, library, ("main", "/h/b.py")) == "b.py:7 main"
    assert site(torch_frame, library) == "loop.py:7 step"
    assert site(torch_frame) == "linear.py:7 forward"
    assert site() == "(no stack)"


def test_python_frames_behind_the_process_entry_still_count() -> None:
    """Where the interpreter has no symbols, Python frames are appended after `_start`."""
    assert site(("torch::unwind::unwind()", "??"), ("_start", "??"), ("train", "/h/train.py")) == "train.py:7 train"


def test_the_backward_thread_is_named_by_its_node() -> None:
    frames = [
        ("torch::unwind::unwind()", "??"),
        ("c10::cuda::CUDACachingAllocator::Native::malloc(void**)", ""),
        ("at::_ops::mm::call(at::Tensor const&)", "??"),
        ("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??"),
        ("torch::autograd::Engine::thread_main()", "??"),
    ]
    assert site(*frames) == "MmBackward0 (backward)"


def test_cpp_only_stacks_skip_unwinder_and_allocator() -> None:
    frames = [
        ("torch::unwind::unwind()", "??"),
        ("c10::cuda::CUDACachingAllocator::Native::malloc(void**)", ""),
        ("at::native::cudnn_convolution(at::Tensor const&)", "Conv.cpp"),
    ]
    assert site(*frames) == "at::native::cudnn_convolution (C++)"


def test_the_request_that_failed_came_from_backward() -> None:
    snapshot = load_sample("llm_oom")
    failed = snapshot.events[snapshot.events["action"] == "oom"].iloc[0]
    assert snapshot.stacks.site(failed["stack"]).label == "LogSoftmaxBackward0 (backward)"


def test_equal_stacks_are_kept_once() -> None:
    one = {"name": "f", "filename": "a.py", "line": 1}
    two = {"name": "g", "filename": "a.py", "line": 2}
    interner = StackInterner()
    ids = interner.add_many([[one, two], [dict(one), dict(two)], [two, one], [one], [], [one, two]])
    assert ids.tolist() == [0, 0, 1, 2, -1, 0]
    stacks = interner.finish({0: ["forward ", "text"]})
    assert len(stacks) == 3
    assert len(stacks.frames) == 2
    assert stacks.text(1) == ["a.py:2 g", "a.py:1 f"]
    assert stacks.forward == {0: "forward text"}


@pytest.mark.parametrize("frame", ["plain text", 3, {}, {"name": None, "line": "x"}, {"line": 2**64 - 1}])
def test_odd_frames_do_no_harm(frame: object) -> None:
    interner = StackInterner()
    assert interner.add_many([[frame]]).tolist() == [0]
    assert interner.finish({}).frames["line"].tolist() == [0]


def test_sites_are_told_apart_by_file_not_by_label() -> None:
    interner = StackInterner()
    interner.add_many([[{"name": "f", "filename": f"/{folder}/a.py", "line": 1}] for folder in "xy"])
    sites, of_stack = interner.finish({}).site_table
    assert [one.label for one in sites] == ["a.py:1 f", "a.py:1 f"]
    assert of_stack == (0, 1)
