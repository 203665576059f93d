"""Measure the simulated allocator: events a second on one core, and a whole ``snapana whatif --sweep``."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import snapana
from snapana.analyses.whatif import simulate, workload

CONFS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"]
RUN = "import sys; from snapana.cli import main; sys.exit(main())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=Path, help="a snapshot")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    snapshot = snapana.load(options.input)
    events = snapshot.replay[0].events["action"]
    # Those that the allocator is asked for: allocations and both halves of frees.
    count = int(events.isin(["alloc", "free_requested", "free_completed", "free"]).sum())
    work = workload(snapshot, 0)
    from snapana.allocator.settings import parse_conf

    for conf in CONFS:
        seconds = []
        for _ in range(options.runs):
            start = time.perf_counter()
            simulate(work, parse_conf(conf), ranges=False)
            seconds.append(time.perf_counter() - start)
        print(f"{conf or 'defaults':28} {count / statistics.median(seconds):10,.0f} events a second of {count:,}")
    seconds = []
    for _ in range(options.runs):
        start = time.perf_counter()
        command = [sys.executable, "-c", RUN, "whatif", str(options.input), "--sweep", "--json"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    print(f"whatif --sweep as a whole process: {statistics.median(seconds):.2f} s")


if __name__ == "__main__":
    main()
