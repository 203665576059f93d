"""Hold what-if answers and plans against real runs, and print the tables of docs/whatif.md.

``python benchmarks/whatif_table.py FOLDER --into docs/whatif.md``: FOLDER has recordings
``WORKLOAD.CONF/snapshot.pickle[.xz]`` of the same workload under several settings. What the ``default`` one asked for
is run under the settings of each of the others. The plans are made from sample_traces.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import snapana
from snapana.analyses.plan import Point, plan
from snapana.analyses.whatif import Run, what_if

SAMPLES = Path(__file__).parent.parent / "sample_traces"
GIB = 1024**3
# Limits that the workloads ran under; those named after their limit have it in their name.
LIMITS = {"synth_gc": 3 * GIB, "frag_oom": 4 * GIB}


@dataclass(frozen=True)
class Row:
    """One workload under one setting."""

    name: str
    real: int
    real_failed: int | None
    run: Run


def find(folder: Path, name: str) -> Path | None:
    return next((path for path in sorted((folder / name).glob("snapshot.pickle*"))), None)


def rows(folder: Path) -> list[Row]:
    """Predict every recording of the folder from the default one of its workload."""
    by_workload: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        by_workload.setdefault(path.name.rsplit(".", 1)[0], []).append(path.name)
    found = []
    for workload, names in by_workload.items():
        limit = LIMITS.get(workload)
        source = workload
        if workload.startswith("frag_") and workload not in LIMITS:
            # The same requests under a lower limit: those of the run that got to their end.
            limit, source = int(float(workload.removeprefix("frag_")) * GIB), "frag_oom"
        base = find(folder, f"{source}.default") or find(folder.parent / "gpu", source)
        if base is None:
            continue
        snapshot = snapana.load(base)
        real = {name: snapana.load(path) for name in names if (path := find(folder, name)) is not None}
        print(workload, file=sys.stderr)
        # As it stands in the file, the setting may hold what the limit was set by.
        answers = what_if(snapshot, 0, [one.settings.conf for one in real.values()], limit=limit)
        for (name, one), run in zip(real.items(), answers.runs[1:], strict=True):
            events = one.replay[0].events["action"]
            failed = int((events == "alloc").sum()) if (events == "oom").any() else None
            found.append(Row(name, int(one.replay[0].curves["reserved"].max()), failed, run))
    return found


def print_rows(found: list[Row]) -> None:
    print("| recording | predicted | range | real | error | out of memory: predicted, real |")
    print("| --- | ---: | --- | ---: | ---: | --- |")
    for row in found:
        run = row.run
        failed = ["no" if at is None else f"at {at:,}" for at in (run.failed_at, row.real_failed)]
        print(
            f"| {row.name} | {run.peak_reserved:,} | {run.low:,} to {run.high:,} | {row.real:,} "
            f"| {run.peak_reserved / row.real - 1:+.2%} | {', '.join(failed)} |"
        )
    exact = sum(row.run.peak_reserved == row.real for row in found)
    inside = sum(row.run.low <= row.real <= row.run.high for row in found)
    right = sum(row.run.failed_at == row.real_failed for row in found)
    print(f"\n{exact} of {len(found)} are equal to the byte, {inside} in the range.")
    print(f"Whether and where memory ran out is right on {right}.")


PLANS: list[tuple[str, list[tuple[str, int]], dict[str, tuple[int, int]]]] = [
    (
        "two recordings",
        [("train_b4", 4), ("train_b16", 16)],
        {"train_adam": (8, 1), "train_b32": (32, 1), "train_b64": (64, 1)},
    ),
    ("two recordings", [("text_b6", 6), ("text_b16", 16)], {"text_b48": (48, 1)}),
    ("two recordings", [("conv_b6", 6), ("conv_b16", 16)], {"conv_b48": (48, 1)}),
    (
        "one recording",
        [("train_adam", 8)],
        {
            "train_b4": (4, 1),
            "train_b16": (16, 1),
            "train_b32": (32, 1),
            "train_b64": (64, 1),
            "train_accum4x8": (8, 4),
        },
    ),
    ("one recording", [("text_b6", 6)], {"text_b16": (16, 1), "text_b48": (48, 1), "text_b6_accum4": (6, 4)}),
    ("one recording", [("text_b16", 16)], {"text_b6": (6, 1), "text_b48": (48, 1)}),
    ("one recording", [("conv_b6", 6)], {"conv_b16": (16, 1), "conv_b48": (48, 1)}),
    ("one recording", [("conv_b16", 16)], {"conv_b6": (6, 1), "conv_b48": (48, 1), "conv_b16_accum3": (16, 3)}),
]


def true_peak(name: str) -> int:
    truth = json.loads((SAMPLES / f"{name}.truth.json").read_text())
    steps = [step["allocated_bytes.all.peak"] for step in truth.get("steps", [])]
    return max([*steps, truth["final"].get("max_allocated", 0)])


def print_plans() -> None:
    print("| from | real run | micro-batch | predicted | range | real | error |")
    print("| --- | --- | ---: | ---: | --- | ---: | ---: |")
    for kind, sources, targets in PLANS:
        files = [(snapana.load(SAMPLES / f"{name}.pickle.xz"), batch) for name, batch in sources]
        (first, batch), *others = files
        second, second_batch = others[0] if others else (None, None)
        for name, (micro, accumulate) in targets.items():
            found = plan(
                first,
                0,
                batch,
                other=second,
                other_batch=second_batch,
                at=[micro],
                effective_batch=micro * accumulate,
            )
            point: Point | None = found.recipe if accumulate > 1 else found.points[0]
            assert point is not None
            real = true_peak(name)
            made_of = " and ".join(source for source, _ in sources)
            times = f"{accumulate} x {micro}" if accumulate > 1 else str(micro)
            print(
                f"| {kind}: {made_of} | {name} | {times} | {point.peak_allocated:,} "
                f"| {point.low:,} to {point.high:,} | {real:,} | {point.peak_allocated / real - 1:+.2%} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="recordings of workloads under several settings")
    parser.add_argument("--into", type=Path, help="a page: the tables are put between its marks")
    options = parser.parse_args()
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_rows(rows(options.folder))
    settings = text.getvalue()
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_plans()
    if options.into is None:
        print(settings, text.getvalue(), sep="\n")
        return
    page = options.into.read_text()
    for name, table in (("settings", settings), ("plans", text.getvalue())):
        before, _, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        page = f"{before}<!-- {name} -->\n{table}{end}{after}"
    options.into.write_text(page)


if __name__ == "__main__":
    main()
