"""Redaction: planted names leave no trace in any output, and no figure changes."""

from __future__ import annotations

import json
import lzma
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from snapana.cli import main
from snapana.redact import Redactor
from tests.cli.test_cli import run_json
from tests.conftest import SAMPLES

USER, HOST, MAIL = "mkowalska", "trn-node17", "m.kowalska@labs.example.org"
TOKEN, PROJECT, TEXT = "hf_QmX81kdLoP29sTvBnZ47", "projekt_orion", "stage two for customer Nordwind"
SHARE, WINDOWS = "fileserv09", "kowalskam"
PLANTED = [USER, HOST, "labs.example.org", TOKEN, PROJECT, "Nordwind", SHARE, WINDOWS, "orion"]


def planted_document() -> dict[str, Any]:
    """Plant private names wherever a recording of training has text."""
    document = pickle.loads(lzma.decompress((SAMPLES / "train_adam.pickle.xz").read_bytes()))
    places = {
        "/home/user/train/": f"/home/{USER}/{PROJECT}/",
        "/home/user/venv/": f"/home/{USER}/.conda/envs/{PROJECT}/",
    }
    odd = [
        f"C:\\Users\\{WINDOWS}\\{PROJECT}\\train.py",
        f"\\\\{SHARE}\\ml\\{PROJECT}\\train.py",
        f"/tmp/torchinductor_{USER}/ab/cab.py",
        f"/mnt/{HOST}/jobs/{USER}_run.py",
        f"<eval_with_key>.3 from /home/{USER}/{PROJECT}/net.py:12 in forward",
    ]
    seen: set[int] = set()
    for trace in document["device_traces"]:
        for number, event in enumerate(trace):
            for frame in event["frames"]:
                if id(frame) in seen:
                    continue
                seen.add(id(frame))
                for old, new in places.items():
                    frame["filename"] = frame["filename"].replace(old, new)
            if event["action"] == "alloc" and number % 50 == 0:
                event["frames"] = [{"name": "load", "filename": odd[number // 50 % 5], "line": 7}, *event["frames"]]
                event["user_metadata"] = f"{TEXT}, ask {MAIL}"
    document["external_annotations"] += [
        {"stage": stage, "name": f"## {TEXT} {TOKEN}", "device": 0, "time_us": trace[at]["time_us"]}
        for stage, at in (("START", 100), ("END", 400))
    ]
    document["external_annotations"] += [
        {"stage": stage, "name": f"{USER}@{HOST}: {MAIL}", "device": 0, "time_us": trace[at]["time_us"]}
        for stage, at in (("START", 500), ("END", 700))
    ]
    document[f"{PROJECT}_notes"] = {"owner": MAIL, "token": TOKEN}
    document["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = ""
    return document


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planted") / f"profil_{USER}.pickle"
    path.write_bytes(pickle.dumps(planted_document(), protocol=4))
    return path


def leaked(data: bytes | str) -> list[str]:
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    return [name for name in PLANTED if re.search(re.escape(name), text, re.IGNORECASE)]


def test_planted_names_are_there_without_redaction(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(planted), "-o", "-"]) == 0
    assert {USER, PROJECT} <= set(leaked(capsys.readouterr().out))


@pytest.mark.parametrize(
    "command",
    [
        ["report", "-o", "-"],
        ["summary"],
        ["summary", "--json"],
        ["summary", "--markdown"],
        ["compare", "--json"],
        ["compare", "--markdown"],
        ["compare", "-o", "-"],
    ],
)
def test_nothing_leaks(planted: Path, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    files = [str(planted)] * (2 if command[0] == "compare" else 1)
    assert main([command[0], *files, *command[1:], "--redact"]) == 0
    out, err = capsys.readouterr()
    assert leaked(out) == []
    assert leaked(err) == []
    assert "Redacted" in err
    assert "scenarios.py" in out or command[0] == "compare"


def test_convert(planted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean, listed = tmp_path / "clean.pickle", tmp_path / "list.txt"
    assert main(["convert", str(planted), str(clean), "--redact", "--redact-list", str(listed)]) == 0
    data = clean.read_bytes()
    assert data[:2] == b"\x80\x04"
    assert leaked(data) == []
    assert {USER, TOKEN, PROJECT} <= set(leaked(listed.read_text()))
    capsys.readouterr()
    before, after = (summary(path, capsys) for path in (planted, clean))
    assert without_text(before) == without_text(after)
    assert main(["convert", str(planted), str(clean)]) == 2
    assert main(["convert", str(planted), str(tmp_path / "clean.txt")]) == 2
    assert main(["convert", str(SAMPLES / "train_adam.trace.json.xz"), str(tmp_path / "x.pickle")]) == 2
    again = tmp_path / "again.pickle.xz"
    assert main(["convert", str(clean), str(again), "--redact"]) == 0


def summary(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["summary", str(path), "--json", "--top", "0"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def without_text(value: Any) -> Any:
    """Keep figures, and what has no text of the user."""
    if isinstance(value, dict):
        texts = {"input", "site", "sites", "file", "stack", "name", "message", "evidence", "advice", "pin_pairs"}
        kept = {key: without_text(item) for key, item in value.items() if key not in texts}
        if "sites" in value and isinstance(value["sites"], list):
            kept["site_bytes"] = sorted(site["bytes"] for site in value["sites"] if isinstance(site, dict))
        return kept
    return [without_text(item) for item in value] if isinstance(value, list) else value


def test_shared_parts_stay_shared() -> None:
    document = planted_document()
    found = Redactor().document(document)
    own, theirs = document["device_traces"][0], found["device_traces"][0]
    same = [(a, b) for a, b in zip(range(400), range(1, 400), strict=False)]
    for left, right in same:
        shared = own[left]["frames"] is own[right]["frames"]
        assert (theirs[left]["frames"] is theirs[right]["frames"]) == shared


def test_paths_of_packages_stay_readable() -> None:
    redactor = Redactor()
    for path, clean in {
        "/home/anna/env/lib/python3.12/site-packages/torch/nn/functional.py": (
            "/redacted/lib/python3.12/site-packages/torch/nn/functional.py"
        ),
        "C:\\Users\\anna\\env\\Lib\\site-packages\\torch\\optim\\adam.py": (
            "/redacted/Lib/site-packages/torch/optim/adam.py"
        ),
        "/usr/lib/python3.11/json/decoder.py": "/redacted/lib/python3.11/json/decoder.py",
        "/pytorch/c10/cuda/CUDACachingAllocator.cpp": "/redacted/pytorch/c10/cuda/CUDACachingAllocator.cpp",
        "train.py": "train.py",
        "<string>": "<string>",
        "??": "??",
    }.items():
        redactor.learn(path)
        assert redactor.path(path) == clean
    one, other = redactor.path("/home/anna/x/train.py"), redactor.path("/home/anna/x/data.py")
    assert one.rsplit("/", 1)[0] == other.rsplit("/", 1)[0]
    assert Redactor().path("/home/anna/x/train.py") == one


def test_marks_of_steps_and_functions_stay() -> None:
    redactor = Redactor()
    redactor.learn("/home/forward/x.py")
    for text in ("ProfilerStep#12", "Optimizer.step#AdamW.step", "Optimizer.zero_grad#SGD.zero_grad"):
        assert redactor.annotation(text) == text
    assert redactor.annotation("## secret ##").startswith("## annotation-")
    assert redactor.annotation("ProfilerStep#12 of Anna").startswith("ProfilerStep#annotation-")
    assert redactor.function("forward") == "forward"
    assert (
        redactor.conf("expandable_segments:True,max_split_size_mb:64")
        == "expandable_segments:True,max_split_size_mb:64"
    )
    assert "anna" not in redactor.conf("expandable_segments:True;anna")
    assert redactor.scrub("WANDB_API_KEY=0123456789abcdef at 10.1.2.3") != ""
    assert "10.1.2.3" not in redactor.scrub("at 10.1.2.3")


def test_a_trace_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = lzma.decompress((SAMPLES / "train_adam.trace.json.xz").read_bytes()).decode()
    text = text.replace("/home/user/", f"/home/{USER}/").replace("train/scenarios.py", f"{PROJECT}/scenarios.py")
    trace = tmp_path / f"{USER}.json"
    trace.write_text(text)
    assert main(["report", str(trace), "-o", "-"]) == 0
    assert leaked(capsys.readouterr().out)
    for command in (["report", str(trace), "-o", "-"], ["summary", str(tmp_path), "--json"], ["summary", str(trace)]):
        assert main([*command, "--redact"]) == 0
        out, err = capsys.readouterr()
        assert leaked(out + err) == []


def test_small_pages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sample = str(SAMPLES / "llm_oom.pickle.xz")
    assert main(["report", sample, "-o", "-"]) == 0
    whole = capsys.readouterr().out
    assert "to keep the page under" not in whole
    most = len(whole.encode()) - 20_000
    assert main(["report", sample, "-o", "-", "--max-size", str(most)]) == 0
    small = capsys.readouterr().out
    assert len(small.encode()) <= most
    assert "to keep the page under" in small
    assert main(["report", sample, "-o", str(tmp_path / "x.html"), "--max-size", "1KiB"]) == 2
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("name", ["frag_basic", "streams", "expandable", "train_no_ctx", "no_history", "segments_list"])
def test_files_without_annotations_or_stacks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    sample = str(SAMPLES / f"{name}.pickle.xz")
    plain = run_json(capsys, "summary", sample, "--top", "0")
    redacted = run_json(capsys, "summary", sample, "--top", "0", "--redact")
    redacted.pop("redacted")
    assert without_text(plain) == without_text(redacted)
    assert main(["compare", sample, str(SAMPLES / "train_adam.pickle.xz"), "--redact"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("name", ["train_adam", "hf_lora", "ddp_rank2", "leak_hook", "text_b6"])
def test_no_figure_and_no_category_changes(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sample, clean = str(SAMPLES / f"{name}.pickle.xz"), tmp_path / "clean.pickle"
    plain = without_text(run_json(capsys, "summary", sample, "--top", "0"))
    assert main(["convert", sample, str(clean), "--redact"]) == 0
    capsys.readouterr()
    converted = without_text(run_json(capsys, "summary", str(clean), "--top", "0"))
    redacted = without_text(run_json(capsys, "summary", sample, "--top", "0", "--redact"))
    redacted.pop("redacted")
    assert plain == converted == redacted


def test_steps_and_rules_are_those_of_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sample = str(SAMPLES / "train_adam.pickle.xz")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\ncategory = "workspace"\nfile = "/home/user/train/scenarios"\n')
    options = ["--step", "## forward ##", "--rules", str(rules)]
    plain, redacted = (run_json(capsys, "summary", sample, *options, *more) for more in ([], ["--redact"]))
    for one in (plain, redacted):
        assert one["devices"][0]["categories"]["workspace_bytes"] > 800_000_000
    assert [step["start_event"] for step in plain["devices"][0]["steps"]] == [
        step["start_event"] for step in redacted["devices"][0]["steps"]
    ]


def test_names_are_learned_from_all_files_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = []
    for name, path in (("a", "/srv/x/train_janedoe.py"), ("b", "/home/janedoe/x/train_janedoe.py")):
        document = pickle.loads(lzma.decompress((SAMPLES / "leak_hook.pickle.xz").read_bytes()))
        seen: set[int] = set()
        for event in document["device_traces"][0]:
            for frame in event["frames"]:
                if id(frame) not in seen and frame["filename"].endswith("scenarios.py"):
                    seen.add(id(frame))
                    frame["filename"] = path
        files.append(tmp_path / f"{name}.pickle")
        files[-1].write_bytes(pickle.dumps(document))
    for order in (files, files[::-1]):
        assert main(["compare", *map(str, order), "--redact", "--json"]) == 0
        assert "janedoe" not in capsys.readouterr().out


def test_what_is_not_known_is_not_kept() -> None:
    document = planted_document()
    event = document["device_traces"][0][3]
    event["extra"] = {"owner": "Nordwind", 7: b"Nordwind", "set": {"Nordwind"}}
    event["action"] = "Nordwind"
    event["forward_frames"] = ['  File "/home/mkowalska/a.py", line 3, in run\n    secret = "Nordwind"\n']
    document["segments"][0]["segment_type"] = "Nordwind"
    document["segments"][0]["Nordwind"] = 3
    document["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "backend:Nordwind"
    document[("Nordwind",)] = "Nordwind"
    found = Redactor().document(document)
    assert leaked(pickle.dumps(found)) == []
    frames = found["device_traces"][0][3]["forward_frames"]
    assert "line 3, in run" in frames[0]


def test_a_marks_at_sign_and_a_users_name_change_no_step() -> None:
    redactor = Redactor()
    for text in ("loss@step", "/home/optim/x.py", "jane@gpu-node7"):
        redactor.learn(text)
    assert redactor.annotation("Optimizer.step#AdamW.step") == "Optimizer.step#AdamW.step"
    package = "/home/optim/venv/lib/python3.12/site-packages/torch/optim/adam.py"
    assert redactor.path(package).endswith("/site-packages/torch/optim/adam.py")
    assert "/optimizers/" in redactor.path("/home/jane/proj/optimizers/mine.py")
    assert "gpu-node7" not in redactor.scrub("run on gpu-node7")


def test_a_nested_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = pickle.loads(lzma.decompress((SAMPLES / "frag_basic.pickle.xz").read_bytes()))
    deep: list[Any] = []
    for _ in range(400):
        deep = [deep]
    document["deep"] = deep
    path = tmp_path / "deep.pickle"
    path.write_bytes(pickle.dumps(document))
    for options in ([], ["--redact"]):
        code = main(["convert", str(path), str(tmp_path / f"out{len(options)}.pickle"), *options])
        assert code in {0, 2}
        assert "Traceback" not in capsys.readouterr().err
