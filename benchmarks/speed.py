"""Measure whole commands against bare loading of the same file: ``pickle.load``, or JSON for a trace."""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PICKLE = {"pickle.load": "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"}
# The first is the one to compare with.
JSON = {
    "orjson.loads": "import orjson, sys; orjson.loads(open(sys.argv[1], 'rb').read())",
    "json.load": "import json, sys; json.load(open(sys.argv[1], 'rb'))",
}
RUN = "import sys; from snapana.cli import main; sys.exit(main())"


def make_recording(path: Path, steps: int = 400, layers: int = 48) -> None:
    """Write a recording of training: activations, their frees in reverse, optimizer temporaries."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.builders import History

    history = History()
    for layer in range(layers):
        history.alloc(4 * 2**20 + layer * 512, f"weights_{layer}")
    for _ in range(steps):
        live = []
        for layer in range(layers):
            live += [history.alloc(size, f"layer_{layer % 8}") for size in (600_000, 40_000, 3_000_000, 512)]
            history.free(history.alloc(1_200_000, "attend"))
        for addr in reversed(live):
            history.free(history.alloc(90_000, None))
            history.free(addr)
        for _ in range(layers):
            history.free(history.alloc(4096, "optimizer"))
        history.step()
    # One list of frames a capture, as PyTorch writes them: frame dicts are shared, lists are not.
    document = history.document()
    for event in document["device_traces"][0]:
        event["frames"] = list(event["frames"])
    with path.open("wb") as stream:
        pickle.dump(document, stream)


def measure(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; give its seconds and its highest memory in MiB."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", type=Path, help="a snapshot pickle or an unpacked trace; by default one is made")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.input
        if path is None:
            path = Path(folder) / "made.pickle"
            make_recording(path)
        with path.open("rb") as stream:
            loads = JSON if stream.read(64).lstrip()[:1] in b"{[" else PICKLE
        print(f"{path.name}: {path.stat().st_size / 2**20:.0f} MiB, {options.runs} runs each, medians")
        page = str(Path(folder) / "page.html")
        commands = {
            **{name: [sys.executable, "-c", code, str(path)] for name, code in loads.items()},
            "summary": [sys.executable, "-c", RUN, "summary", str(path), "--json"],
            "report": [sys.executable, "-c", RUN, "report", str(path), "-o", page, "--force"],
        }
        base = next(iter(loads))
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        memory = dict.fromkeys(seconds, 0.0)
        for _ in range(options.runs):
            for name, command in commands.items():
                took, used = measure(command)
                seconds[name].append(took)
                memory[name] = max(memory[name], used)
        for name, each in seconds.items():
            ratio = statistics.median(one / least for one, least in zip(each, seconds[base], strict=True))
            print(f"{name:12} {statistics.median(each):7.2f} s  {ratio:5.2f} x {base}  {memory[name]:6.0f} MiB")


if __name__ == "__main__":
    main()
