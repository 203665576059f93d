"""The gate: exit codes, what failed and by which lines, and the table of a TOML file."""

from __future__ import annotations

import pickle
from pathlib import Path
from xml.etree import ElementTree

import pytest

from snapana.analyses.check import parse_leak, parse_tolerance
from snapana.cli import main
from snapana.errors import SnapanaError
from tests.builders import History
from tests.cli.test_cli import run, run_json, sample

PEAK = 1_016_139_264


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("train_adam", ["--max-allocated", str(PEAK)], 0),
        ("train_adam", ["--max-allocated", str(PEAK - 1)], 1),
        ("train_adam", ["--max-reserved", "1002MiB"], 0),
        ("train_adam", ["--max-reserved", "1001MiB"], 1),
        ("train_adam", ["--max-leak", "0/step"], 0),
        ("leak_hook", ["--max-leak", "2MiB/step"], 0),
        ("leak_hook", ["--max-leak", "2097151/step"], 1),
        ("train_adam", ["--min-utilization", "0.9"], 0),
        ("train_adam", ["--min-utilization", "99%"], 1),
        ("no_history", ["--max-leak", "1GiB"], 1),
        ("train_adam", ["--baseline", "train_adam"], 0),
        ("train_b16", ["--baseline", "train_adam"], 1),
        ("train_b16", ["--baseline", "train_adam", "--tolerance", "61%"], 0),
        ("train_b16", ["--baseline", "train_adam", "--tolerance", "584MiB"], 0),
        ("train_b16", ["--baseline", "train_adam", "--tolerance", "583MiB"], 1),
        ("train_checkpoint", ["--baseline", "train_adam"], 0),
        ("train_checkpoint", ["--baseline", "train_adam", "--strict-reserved"], 1),
        ("train_b4", ["--baseline", "train_adam", "--strict-reserved"], 0),
        ("train_adam", ["--tolerance", "2%"], 2),
        ("train_adam", ["--max-allocated", "much"], 2),
        ("train_adam", ["--min-utilization", "80"], 2),
    ],
)
def test_exit_code(capsys: pytest.CaptureFixture[str], name: str, options: list[str], code: int) -> None:
    options = [sample(one) if one.startswith("train_") else one for one in options]
    found, out, _ = run(capsys, "check", sample(name), *options)
    assert found == code
    if code == 0 and "train_checkpoint" not in name and "train_b" not in name:
        assert out == ""
    if code == 1:
        assert "FAILED" in out


def test_json_names_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", sample("leak_hook"), "--max-leak", "1MiB", "--max-allocated", "1GiB", "--json"]) == 1
    import json

    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert [(one["name"], one["passed"], one["value"]) for one in found["checks"]] == [
        ("max_allocated", True, 594_042_368),
        ("max_leak", False, 2_097_152),
    ]
    assert found["checks"][1]["sites"] == [{"site": "scenarios.py:224 <lambda>", "bytes": 2_097_152}]
    passing = run_json(capsys, "check", sample("train_adam"), "--max-allocated", "1GiB")
    assert passing["passed"] is True


def test_traces_are_checked_too(capsys: pytest.CaptureFixture[str]) -> None:
    trace = sample("train_adam").replace(".pickle.xz", ".trace.json.xz")
    assert main(["check", trace, "--max-allocated", str(PEAK), "--max-leak", "0"]) == 0
    code, out, _ = run(capsys, "check", trace, "--min-utilization", "0.1")
    assert (code, "does not tell" in out) == (1, True)


def test_apart_is_said_without_failing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", sample("train_checkpoint"), "--baseline", sample("train_adam"))
    assert code == 0
    assert out.startswith("Note: allocated -37%, reserved -18%")


def test_junit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "vram.xml"
    for limit, failures in (("1GiB", "0"), ("1MiB", "1")):
        main(["check", sample("train_adam"), "--max-allocated", limit, "--junit", str(page)])
        (suite,) = ElementTree.fromstring(page.read_text())
        assert suite.attrib["failures"] == failures
    (case,) = suite
    assert case.attrib["name"] == "max_allocated, device 0"
    (failure,) = case
    assert "scenarios.py:66 forward" in str(failure.text)


def test_table_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "pyproject.toml"
    assert main(["check", sample("train_adam")]) == 2
    assert "[usage.check]" in capsys.readouterr().err
    config.write_text('[tool.snapana.check]\nmax_allocated = "100MiB"\nmax_leak = "0/step"\n')
    assert main(["check", sample("train_adam")]) == 1
    assert main(["check", sample("train_adam"), "--config", str(config), "--max-allocated", "1GiB"]) == 0
    assert main(["check", sample("train_adam"), "--max-allocated", "1GiB"]) == 0
    (tmp_path / "base.pickle.xz").write_bytes(Path(sample("train_b4")).read_bytes())
    config.write_text('[tool.snapana.check]\nbaseline = "base.pickle.xz"\ntolerance = "10%"\n')
    assert main(["check", sample("train_adam")]) == 1
    capsys.readouterr()
    for wrong in ("[tool.snapana.check]\nmax_alocated = 1\n", "[tool.other]\n", "not toml"):
        config.write_text(wrong)
        assert main(["check", sample("train_adam"), "--config", str(config)]) == 2
        assert "[usage.config]" in capsys.readouterr().err


def test_figures_of_options() -> None:
    assert parse_leak("1MiB/step") == parse_leak("1 MiB") == 2**20
    assert parse_tolerance("2%") == 0.02
    assert parse_tolerance("64MiB") == 64 * 2**20
    with pytest.raises(SnapanaError):
        parse_tolerance("-1%")


def test_what_is_not_known_does_not_pass(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--max-allocated", "300GiB"], ["--max-reserved", "300GiB"], ["--baseline", sample("train_adam")]):
        code, out, _ = run(capsys, "check", sample("no_history"), *options)
        assert (code, "unknown" in out) == (1, True)
    code, out, _ = run(capsys, "check", sample("train_truncated"), "--max-allocated", "800MiB")
    assert (code, "lost a part of its run" in out) == (0, True)


def test_each_device_is_held_against_its_own_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, other = (two_devices(tmp_path / name, second) for name, second in (("a.pickle", 4), ("b.pickle", 9)))
    code, out, _ = run(capsys, "check", str(other), "--baseline", str(base))
    assert code == 1
    assert "baseline, device 1" in out
    assert main(["check", str(other), "--baseline", str(base), "--device", "0"]) == 0
    assert main(["check", str(other), "--baseline", str(base), "--device", "1"]) == 1
    capsys.readouterr()
    found = run_json(capsys, "compare", str(base), str(other), "--device", "1")
    assert found["delta"]["peak_allocated_bytes"] == 5 * 2**20
    found = run_json(capsys, "compare", str(base), str(other))
    assert any("--device names another" in note for note in found["notes"])


def two_devices(path: Path, second: int) -> Path:
    """Write a snapshot of two devices, of which the first holds 40 MiB and the second so many."""
    documents = []
    for size in (40, second):
        history = History()
        for _ in range(size):
            history.alloc(2**20, "work")
        documents.append(history.document())
    document = documents[0]
    for segment in documents[1]["segments"]:
        document["segments"].append({**segment, "device": 1})
    document["device_traces"].append(documents[1]["device_traces"][0])
    path.write_bytes(pickle.dumps(document))
    return path


def test_fractions_and_switches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_tolerance("0.02") == 0.02
    config = tmp_path / "c.toml"
    base = sample("train_adam")
    config.write_text(f'[tool.snapana.check]\nbaseline = "{base}"\ntolerance = 0.7\n')
    assert main(["check", sample("train_b16"), "--config", str(config)]) == 0
    config.write_text(f'[tool.snapana.check]\nbaseline = "{base}"\nstrict_reserved = "false"\n')
    assert main(["check", sample("train_b16"), "--config", str(config)]) == 2
    assert "[usage.config]" in capsys.readouterr().err
