"""The commands, as their user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from snapana.analyses.rules import CATEGORIES
from snapana.cli import main
from tests.builders import History
from tests.conftest import CHECKOUT, SAMPLES, truth_of
from tests.test_truth import highest

OOM = str(SAMPLES / "oom_train.pickle.xz")


def sample(name: str) -> str:
    return str(SAMPLES / f"{name}.pickle.xz")


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


def run_json(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    code, out, _ = run(capsys, *args, "--json")
    assert code == 0
    return json.loads(out)


def test_help_imports_nothing_heavy() -> None:
    """What makes ``--help`` slow is never loaded by it."""
    script = (
        "import sys; from snapana.cli import main; main(['--help']); "
        "print(sorted({'pandas', 'numpy', 'matplotlib', 'jinja2', 'rich'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")
    assert "snapana report profil_vram.pickle" in out
    for command in ("report", "summary", "peak", "fragmentation", "leaks", "oom"):
        assert f"\n  {command} " in out


def test_summary_imports_no_matplotlib_and_nothing_imports_torch() -> None:
    script = (
        f"import sys; from snapana.cli import main; main(['summary', {OOM!r}]); "
        "print(sorted({'matplotlib', 'torch'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")


@pytest.mark.parametrize("command", ["report", "summary", "peak", "fragmentation", "leaks", "oom"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"snapana {command} profil_vram.pickle" in out


def test_summary_json_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "summary", OOM)
    truth = truth_of("oom_train")
    assert document["snapana"]["schema"] == 1
    assert document["input"]["kind"] == "snapshot"
    assert document["input"]["events"] == 5577
    assert document["input"]["generation"] == "torch 2.10-2.11"
    assert len(document["input"]["sha256"]) == 64
    (device,) = document["devices"]
    assert set(device) == {
        "device",
        "window",
        "peak",
        "peak_reserved",
        "end",
        "fragmentation",
        "card",
        "waiting",
        "steps",
        "leaks",
        "oom",
        "oom_events",
        "churn",
        "categories",
        "growth",
    }
    peak = device["peak"]
    assert peak["allocated_bytes"] == highest(truth, "allocated")
    assert device["peak_reserved"]["reserved_bytes"] == highest(truth, "reserved")
    assert sum(site["bytes"] for site in peak["sites"]) + peak["others_bytes"] == peak["allocated_bytes"]
    named = [site for site in peak["sites"] if site["file"]]
    assert sum(site["bytes"] for site in named) == peak["attributed_bytes"]
    cache = device["fragmentation"]
    parts = [cache[f"{part}_bytes"] for part in ("releasable", "unreleasable", "pool_held")]
    assert sum(parts) == cache["cached_bytes"]
    assert sum(pin["pinned_bytes"] for pin in cache["pins"]) == cache["unreleasable_bytes"]
    (failure,) = device["oom"]
    assert failure["verdict"] == "limit"
    assert failure["requested_bytes"] == truth["observer"][1]
    assert failure["device_free_bytes"] == truth["observer"][3]
    assert failure["limit_bytes"] is None
    assert [finding["code"] for finding in document["findings"]] == [
        "oom.limit",
        "peak.activations_dominate",
        "churn.retries",
        "peak.largest_site",
        "peak.logits",
    ]


def test_top_and_min_size_fold_rows_into_others(capsys: pytest.CaptureFixture[str]) -> None:
    few = run_json(capsys, "peak", OOM, "--top", "2")["devices"][0]["peak"]
    large = run_json(capsys, "peak", OOM, "--min-size", "256MiB")["devices"][0]["peak"]
    whole = run_json(capsys, "peak", OOM, "--top", "0")["devices"][0]["peak"]
    assert len(few["sites"]) == 2
    assert min(site["bytes"] for site in large["sites"]) >= 256 * 2**20
    assert whole["others_bytes"] == 0
    for peak in (few, large, whole):
        assert sum(site["bytes"] for site in peak["sites"]) + peak["others_bytes"] == whole["allocated_bytes"]


@pytest.mark.parametrize("part", ["peak", "fragmentation", "leaks", "oom"])
def test_parts_print_what_the_summary_does(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_json(capsys, "summary", OOM)["devices"][0]
    (device,) = run_json(capsys, part, OOM)["devices"]
    assert device == {"device": 0, part: whole[part], **({"growth": whole["growth"]} if part == "leaks" else {})}
    code, out, _ = run(capsys, part, OOM)
    assert code == 0
    assert out.strip()


def test_unknown_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    device = run_json(capsys, "summary", str(SAMPLES / "no_history.pickle.xz"))["devices"][0]
    assert device["window"]["start_us"] is None
    assert device["window"]["complete"] is False
    assert device["leaks"] is None
    assert device["peak"]["event"] == -1
    assert device["peak"]["time_us"] is None


def test_text_summary(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "summary", OOM)
    assert code == 0
    assert err == ""
    assert "Out of memory: 512.00 MiB did not fit. Cause: limit." in out
    assert "scenarios.py:66 forward" in out
    assert "\x1b[" not in out


def test_markdown_summary_is_short_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "summary", OOM, "--markdown")
    assert code == 0
    assert len(out.splitlines()) <= 60
    assert "| 2.50 GiB | 48 | scenarios.py:66 forward |" in out
    assert "<details>" in out


def test_hostile_names_stay_text_in_markdown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    history = History()
    history.alloc(512, "</details><script>alert(1)</script>|`x` [a](javascript:b) @someone ``` #1")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(history.document()))
    _, out, _ = run(capsys, "summary", str(path), "--markdown")
    assert out.count("<script>") == 1
    assert out.index("````") < out.index("<script>") < out.rindex("````")
    table = next(line for line in out.splitlines() if line.startswith("| 512 B | 1 |"))
    assert table.replace("\\|", "").count("|") == 4


def test_report_is_written_beside_and_never_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "report", OOM)
    assert (code, err) == (0, "Wrote oom_train.html\n")
    page = (tmp_path / "oom_train.html").read_text()
    (tmp_path / "oom_train.html").write_text("mine")
    code, _, err = run(capsys, "report", OOM)
    assert code == 2
    assert "[output.exists]" in err
    assert (tmp_path / "oom_train.html").read_text() == "mine"
    written = run_json(capsys, "report", OOM, "--force")
    assert (tmp_path / "oom_train.html").read_text() == page
    assert written == {"output": "oom_train.html", "size_bytes": (tmp_path / "oom_train.html").stat().st_size}
    code, out, _ = run(capsys, "report", OOM, "-o", "-")
    assert out == page


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["summary", "missing.pickle"], "input.not_found"),
        (["report", str(SAMPLES / "README.md")], "input.unknown_format"),
        (["summary", OOM, "--device", "3"], "usage.device"),
        (["summary", OOM, "--top", "many"], "usage"),
        (["summary", OOM, "--min-size", "big"], "usage"),
        (["summary"], "usage"),
        (["no-such-command"], "usage"),
        (["summary", OOM, "--markdown", "--max-input", "1KiB"], "input.too_large"),
        (["report", OOM, "-o", "/no/such/folder/a.html"], "output.unwritable"),
    ],
)
def test_errors_are_one_line_and_exit_2(args: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *args)
    assert status == 2
    assert out == ""
    assert f"[{code}]" in err
    assert len(err.splitlines()) == 1
    status, out, err = run(capsys, *args, "--json")
    assert status == 2
    if "--markdown" not in args:
        assert json.loads(out)["error"]["code"] == code
    assert len(err.splitlines()) == 1


def test_installed_command_runs() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import sys; from snapana.cli import main; sys.exit(main())", "oom", "missing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert "Traceback" not in found.stderr


# ---- the message, the card, the instant


def test_message_fills_in_what_the_file_lacks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 3\n" + truth_of("other_process")["oom_message"] + "\n")
    bare = run_json(capsys, "oom", sample("other_process"))["devices"][0]["oom"][0]
    told = run_json(capsys, "oom", sample("other_process"), "--message", str(log))["devices"][0]["oom"][0]
    assert (bare["verdict"], bare["card_bytes"], bare["message"]) == ("capacity", None, None)
    assert told["verdict"] == "other_processes"
    assert told["message"]["processes"] == [{"pid": 598, "bytes": int(98.37 * 2**30)}]
    assert told["other_processes_bytes"] == int(98.37 * 2**30)


def test_message_alone_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = truth_of("stranded_pool")["oom_message"]
    found = run_json(capsys, "oom", "--message", text)["devices"][0]["oom"][0]
    assert (found["event"], found["verdict"]) == (None, "stranded_pool")
    assert found["allocated_bytes"] == 2**30
    assert main(["oom", "--message", text]) == 0
    assert "_dump_snapshot" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["oom"], "usage"),
        (["oom", "--message", "nothing here"], "message.unreadable"),
        (["oom", "--message", str(SAMPLES / "README.md")], "message.not_found"),
        (["peak", OOM, "--at", "noon"], "usage.at"),
        (["peak", OOM, "--at", "99999999"], "usage.at"),
        (["fragmentation", str(SAMPLES / "train_adam.pickle.xz"), "--at", "oom"], "usage.at"),
        (["peak", str(SAMPLES / "frag_basic.pickle.xz"), "--at", "optimizer"], "usage.at"),
    ],
)
def test_what_cannot_be_done_says_why(capsys: pytest.CaptureFixture[str], arguments: list[str], code: str) -> None:
    assert main([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == code
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("at", ["peak", "peak_reserved", "oom", "optimizer", "end", "-1", "100"])
def test_instants(capsys: pytest.CaptureFixture[str], at: str) -> None:
    peak = run_json(capsys, "peak", OOM, "--at", at, "--top", "0")["devices"][0]["peak"]
    cache = run_json(capsys, "fragmentation", OOM, "--at", at)["devices"][0]["fragmentation"]
    assert (peak["at"], cache["at"]) == (at, at)
    assert peak["event"] == cache["event"]
    assert peak["allocated_bytes"] == cache["allocated_bytes"] == sum(site["bytes"] for site in peak["sites"])
    assert main(["peak", OOM, "--at", at]) == 0


@pytest.mark.parametrize("card", [None, "139.8GiB"])
def test_the_card_closes(capsys: pytest.CaptureFixture[str], card: str | None) -> None:
    extra = [] if card is None else ["--card", card]
    found = run_json(capsys, "summary", OOM, *extra)["devices"][0]["card"]
    known = sum(part["bytes"] or 0 for part in found["parts"])
    if card is None:
        assert found["capacity_bytes"] is None
        assert [part["key"] for part in found["parts"] if part["bytes"] is None] == ["unknown"]
    else:
        assert known == found["capacity_bytes"]


def test_output_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for output in (str(tmp_path), str(tmp_path / "missing" / "x.html")):
        assert main(["report", OOM, "-o", output]) == 2
        assert "output.unwritable" in capsys.readouterr().err


def test_a_refused_report_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "x.html"
    place.write_text("old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    assert main(["report", OOM, "-o", str(place), "--force"]) == 2
    assert place.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


def test_help_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_a_closed_pipe_is_no_failure() -> None:
    command = f"{sys.executable} -m snapana summary {OOM} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert done.stdout.strip().splitlines()[-1] == "0"
    assert done.stderr == ""


# ---- categories, groups, steps, growth


@pytest.mark.parametrize("by", ["site", "category", "file", "function", "annotation", "stream", "pool"])
def test_groups_close(capsys: pytest.CaptureFixture[str], by: str) -> None:
    adam = sample("train_adam")
    found = run_json(capsys, "peak", adam, "--by", by, "--top", "2")["devices"][0]
    peak = found["peak"]
    if by == "site":
        assert "categories" not in found
        assert sum(site["bytes"] for site in peak["sites"]) + peak["others_bytes"] == peak["allocated_bytes"]
        assert {site["category"] for site in peak["sites"]} <= set(CATEGORIES)
    else:
        assert peak["by"] == by
        total = sum(group["bytes"] for group in peak["groups"]) + peak["other_groups_bytes"]
        assert total == peak["allocated_bytes"] == found["categories"]["total_bytes"]
    assert main(["peak", adam, "--by", by]) == 0


@pytest.mark.parametrize("name", ["train_adam", "hf_lora"])
def test_categories_at_the_optimizer_equal_pytorchs(capsys: pytest.CaptureFixture[str], name: str) -> None:
    found = run_json(capsys, "peak", sample(name), "--by", "category", "--at", "optimizer")["devices"][0]
    asked, truth = found["categories"]["requested"], truth_of(name)
    buffers = {"train_adam": 0, "hf_lora": 128}[name]
    assert asked["parameters_bytes"] == truth["param_bytes"] + buffers
    assert asked["gradients_bytes"] == truth["grad_bytes"]
    assert asked["optimizer_bytes"] == truth["optimizer_bytes"]
    assert sum(size for key, size in asked.items() if key != "total_bytes") == asked["total_bytes"]
    assert asked["total_bytes"] == found["peak"]["requested_bytes"]


def test_rules_of_the_user_win(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\ncategory = "other"\nfunction = "^attend$"\nfile = "scenarios"\n'
        '[[rule]]\ncategory = "inputs"\nfunction = "^attend$|^forward$"\n'
    )
    before = run_json(capsys, "peak", sample("train_adam"), "--by", "category")["devices"][0]["categories"]
    after = run_json(capsys, "peak", sample("train_adam"), "--by", "category", "--rules", str(rules))
    changed = after["devices"][0]["categories"]
    assert before["other_bytes"] == 0
    assert changed["other_bytes"] > 0
    assert changed["inputs_bytes"] > before["inputs_bytes"]
    assert changed["total_bytes"] == before["total_bytes"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("category", "rules.invalid"),
        ("[[rule]]\ncategory = 'weights'\nfile = 'a'", "rules.invalid"),
        ("[[rule]]\ncategory = 'inputs'", "rules.invalid"),
        ("[[rule]]\ncategory = 'inputs'\nfile = '('", "rules.invalid"),
        ("[[rule]]\ncategory = 'inputs'\ncolour = 'red'", "rules.invalid"),
        (None, "rules.unreadable"),
    ],
)
def test_bad_rules_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | None, code: str
) -> None:
    rules = tmp_path / "rules.toml"
    if text is not None:
        rules.write_text(text)
    assert main(["peak", sample("train_adam"), "--rules", str(rules)]) == 2
    assert code in capsys.readouterr().err


def test_growth_says_when_memory_runs_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "leaks", sample("leak_hook"), "--card", "1GiB")["devices"][0]
    reserved = highest(truth_of("leak_hook"), "reserved")
    assert found["growth"]["steps_until_full"] == (2**30 - reserved) // 2_097_152
    assert found["growth"]["trends"][0]["kind"] == "growing"
    assert main(["leaks", sample("leak_hook"), "--card", "1GiB"]) == 0
    assert "runs out in" in capsys.readouterr().out


def test_steps_by_a_name_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "leaks", sample("train_adam"), "--step", "## forward ##")["devices"][0]
    assert (found["growth"]["steps_source"], found["growth"]["steps_confidence"]) == ("## forward ##", 1.0)
    assert main(["leaks", sample("train_adam"), "--step", "## lunch ##"]) == 2
    assert "## forward ##" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".pickle.xz") for path in SAMPLES.glob("*.pickle.xz")))
def test_every_sample_gives_every_form(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    for device in run_json(capsys, "summary", sample(name))["devices"]:
        sums = device["categories"]
        assert sum(size for key, size in sums.items() if key not in {"total_bytes", "requested"}) == sums["total_bytes"]
        assert sums["total_bytes"] == device["peak"]["allocated_bytes"]
    assert main(["summary", sample(name)]) == 0
    assert main(["summary", sample(name), "--markdown"]) == 0
    assert main(["report", sample(name), "-o", str(tmp_path / "page.html")]) == 0


def test_what_if(capsys: pytest.CaptureFixture[str]) -> None:
    what = ("whatif", sample("frag_3.8"), "--conf", "expandable_segments:True")
    found = run_json(capsys, *what)
    assert found["replay"]["mismatches"] == 0
    assert found["recorded"]["simulated"]["recorded_failures_again"] == 1
    assert [(run["conf"], run["recorded_failures_again"]) for run in found["runs"]] == [("expandable_segments:True", 0)]
    assert found["bounds"]["packed_bytes"] >= found["bounds"]["peak_allocated_bytes"]
    code, out, _ = run(capsys, *what)
    assert code == 0
    assert "exactly" in out
    assert "the recorded request" in out
    code, _, err = run(capsys, "whatif", sample("train_adam"), "--conf", "max_split_size_mb:3")
    assert (code, "[settings.invalid]" in err) == (2, True)


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    what = ("plan", sample("train_b4"), "--batch", "4", "--other", sample("train_b16"), "--other-batch", "16")
    found = run_json(capsys, *what, "--at", "64", "--at", "32", "--capacity", "4GiB")
    assert [(point["micro_batch"], point["peak_allocated_bytes"]) for point in found["points"]] == [
        (32, 2_851_966_464),
        (64, 5_303_930_368),
    ]
    assert all(point["low_bytes"] <= point["peak_allocated_bytes"] <= point["high_bytes"] for point in found["points"])
    assert found["recipe"]["micro_batch"] * found["recipe"]["accumulation_steps"] == 64
    assert found["recipe"]["effective_batch"] == 64
    assert found["largest_micro_batch"] >= found["recipe"]["micro_batch"]
    code, out, _ = run(capsys, *what, "--at", "64", "--capacity", "4GiB", "--margin", "0")
    assert code == 0
    assert "divide the loss by" in out
    assert "scenarios.py:66 forward" in out
    for wrong in (("--other", sample("train_b16")), ("--margin", "2"), ("--conf", "max_split_size_mb:3")):
        assert main(["plan", sample("train_b4"), "--batch", "4", *wrong]) == 2
        assert "snapana: " in capsys.readouterr().err
    assert main(["plan", sample("train_adam").replace(".pickle.xz", ".trace.json.xz"), "--batch", "8"]) == 2
    assert "[input.not_a_snapshot]" in capsys.readouterr().err


def test_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pair = (sample("train_adam"), sample("train_b16"))
    found = run_json(capsys, "compare", *pair)
    assert set(found) >= {"base", "other", "delta", "sites", "verdict"}
    assert found["delta"]["peak_allocated_bytes"] == 1_628_081_664 - 1_016_139_264
    assert sum(site["delta_bytes"] for site in found["sites"]) == found["delta"]["peak_allocated_bytes"]
    for side, peak in (("base", 1_016_139_264), ("other", 1_628_081_664)):
        assert found[side]["peak"]["allocated_bytes"] == peak
        assert {"input", "peak", "end", "fragmentation"} <= set(found[side])
    assert "the batch looks twice as large" in found["verdict"]
    for site in found["sites"]:
        assert sum(one["other_blocks"] for one in site["block_sizes"]) <= site["other_blocks"]
    code, out, _ = run(capsys, "compare", *pair)
    assert (code, out.splitlines()[0].endswith("the batch looks twice as large.")) == (0, True)
    code, out, _ = run(capsys, "compare", *pair, "--markdown")
    assert (code, len(out.splitlines()) <= 60, "<details>" in out) == (0, True, True)
    page = tmp_path / "page.html"
    assert main(["compare", *pair, sample("train_b4"), "-o", str(page)]) == 0
    assert main(["compare", *pair, "-o", str(page)]) == 2
    assert "twice as large" in page.read_text()
    assert "and 1 more against" in page.read_text()
    code, out, _ = run(capsys, "compare", pair[0], pair[0])
    assert (code, out.splitlines()[0]) == (0, "No difference.")
    three = run_json(capsys, "compare", *pair, sample("train_b4"))
    assert [run["other"]["input"]["name"] for run in three["runs"]] == ["train_b16.pickle.xz", "train_b4.pickle.xz"]
    trace = sample("train_adam").replace(".pickle.xz", ".trace.json.xz")
    mixed = run_json(capsys, "compare", pair[0], trace)
    assert mixed["delta"]["peak_reserved_bytes"] == 0
    assert any("profiler trace" in note for note in mixed["notes"])


def test_compare_speaks_up_when_allocated_and_reserved_part(capsys: pytest.CaptureFixture[str]) -> None:
    pair = (sample("train_adam"), sample("train_checkpoint"))
    code, out, _ = run(capsys, "compare", *pair)
    assert (code, "allocated -37%, reserved -18%" in out.splitlines()[1]) == (0, True)
    assert main(["compare", *pair, "--strict-reserved"]) == 1
    assert main(["compare", sample("train_b4"), sample("train_b16"), "--strict-reserved"]) == 0


def test_what_no_card_has_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", sample("train_b4"), "--batch", "1", "--at", "1048576"]) == 2
    assert "[usage.plan]" in capsys.readouterr().err
    code, out, _ = run(capsys, "whatif", sample("train_b4"), "--preallocate", "1000TiB")
    assert (code, "at allocation" in out) == (0, True)
