"""What the README says works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from snapana.cli import main
from tests.conftest import CHECKOUT, truth_of

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(CHECKOUT)
    examples = blocks("python")
    # Those that need a GPU are at least Python.
    (example,) = [one for one in examples if "snapana.load(" in one]
    for one in examples:
        compile(one, "README.md", "exec")
    exec(compile(example, "README.md", "exec"), {})
    assert "6392119296" in capsys.readouterr().out.replace(",", "")


def test_commands_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each ``snapana`` line of the shell examples that names a sample."""
    monkeypatch.chdir(CHECKOUT)
    lines = [part.strip() for block in blocks("sh") for line in block.splitlines() for part in line.split("&&")]
    commands = [shlex.split(line.split("|")[0])[1:] for line in lines if line.startswith("snapana ")]
    assert len(commands) >= 4
    for command in commands:
        if "train.log" in command:
            log = tmp_path / "train.log"
            log.write_text(truth_of("other_process")["oom_message"])
            command[command.index("train.log")] = str(log)
        if any("sample_traces/" in word for word in command):
            for option in ("-o", "--junit"):
                if option in command:
                    command[command.index(option) + 1] = str(tmp_path / command[command.index(option) + 1])
            if command[0] == "convert":
                command[2] = str(tmp_path / command[2])
            extra = ["-o", f"{tmp_path}/page.html", "--force"] if command[0] == "report" else []
            assert main([*command, *extra]) == 0, command
    capsys.readouterr()
