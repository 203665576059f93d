"""``snapana check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snapana.cli.common import SizeType, print_json, progress, rules_from, rules_option, step_option, write_new
from snapana.errors import SnapanaError

if TYPE_CHECKING:
    from snapana.analyses.check import Limits

_TABLE = "tool.snapana.check"


@click.command()
@click.argument("input", metavar="INPUT")
@click.option("--max-allocated", metavar="SIZE", default=None, help="The peak of allocated, such as 10GiB.")
@click.option("--max-reserved", metavar="SIZE", default=None, help="The peak of reserved.")
@click.option("--max-leak", metavar="SIZE/step", default=None, help="What may be kept each step, such as 1MiB/step.")
@click.option("--min-utilization", metavar="SHARE", default=None, help="How much of reserved must be in use: 0.8.")
@click.option("--baseline", metavar="FILE", default=None, help="An earlier run, whose peak of allocated counts.")
@click.option(
    "--tolerance", metavar="SHARE|SIZE", default=None, help="More than the baseline: 2% or 64MiB.  [default: 2%]"
)
@click.option("--strict-reserved", is_flag=True, default=None, help="Hold reserved against the baseline as well.")
@click.option("--config", metavar="FILE", default=None, help=f"A TOML file with these as [{_TABLE}].")
@click.option("--junit", metavar="FILE", default=None, help="Write JUnit XML for a CI page, replacing the file.")
@step_option
@rules_option
@click.option("--device", type=int, default=None, help="Only this device; all by default.")
@click.option("--max-input", type=SizeType(), default="16GiB", help="Refuse more than this, decompressed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(
    input: str,
    config: str | None,
    junit: str | None,
    step: str | None,
    rules: str | None,
    device: int | None,
    max_input: int,
    as_json: bool,
    **given: Any,
) -> int:
    """Hold INPUT, a snapshot or a trace, against limits: exit 0 and print nothing, or exit 1 and say which lines.

    Allocated is the same from run to run; reserved is not, and counts only where a limit for it is given. Without
    options the table [tool.snapana.check] of pyproject.toml is read, with the same names and underscores.

    \b
    Examples:
      snapana check profil_vram.pickle --max-allocated 10GiB --max-leak 0/step
      snapana check profil_vram.pickle --baseline main.pickle --tolerance 2% --junit vram.xml
    """
    from snapana.analyses.check import check as hold
    from snapana.analyses.compare import compare
    from snapana.cli.analyse import analyse, only_overview
    from snapana.cli.compare import tell_apart

    named = {name: value for name, value in given.items() if value is not None}
    if config is not None or not named:
        named = {**_from_file(Path(config or "pyproject.toml"), explicit=config is not None), **named}
    baseline = named.pop("baseline", None)
    step = named.pop("step", None) if step is None else step
    limits = _limits(named, baseline)
    more: dict[str, Any] = {"step": step, "rules": rules_from(rules)}
    compared = []
    with progress() as tell:
        results = only_overview(analyse(input, max_input=max_input, progress=tell, device=device, **more))
        if baseline is not None:
            base = only_overview(analyse(str(baseline), max_input=max_input, progress=tell, **more))
            names = tell_apart([str(baseline), input])
            known = {one.device for one in base.devices}
            numbers: list[int | None] = [
                one.device for one in results.devices if one.device >= 0 and one.device in known
            ]
            # Of files with one device each it does not matter which.
            for number in numbers or [None]:
                compared.append(compare(base, results, (names[0], names[1]), number))
    found = hold(results, limits, compared)
    notes = [f"{one.apart}" for one in compared if one.apart]
    notes += [
        f"{results.snapshot.info.name} lost a part of its run: a peak may lie before what it holds"
        for one in results.devices
        if one.coverage.events and one.coverage.unmatched_frees and results.trace is None
    ][:1]
    if junit is not None:
        from snapana.report.check import junit as as_junit

        write_new(Path(junit), as_junit(found, results.snapshot.info.name), force=True)
    if as_json:
        from snapana.report.check import check_document

        print_json(check_document(found, compared, notes))
    else:
        from snapana.report.check import print_checks

        print_checks(found, notes)
    return 0 if all(one.passed for one in found) else 1


def _from_file(path: Path, *, explicit: bool) -> dict[str, Any]:
    """Read the table of a TOML file; a baseline in it lies beside the file."""
    import tomllib

    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not explicit:
            return {}
        raise SnapanaError("usage.config", f"There is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise SnapanaError("usage.config", f"{path} cannot be read: {error}.") from error
    for part in _TABLE.split("."):
        table = table.get(part, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict) or (explicit and not table):
        raise SnapanaError("usage.config", f"{path} has no table [{_TABLE}].")
    known = {
        "max_allocated",
        "max_reserved",
        "max_leak",
        "min_utilization",
        "baseline",
        "tolerance",
        "strict_reserved",
        "step",
    }
    unknown = sorted(set(table) - known)
    if unknown:
        raise SnapanaError(
            "usage.config", f"{path}: [{_TABLE}] has no {', '.join(unknown)}.", f"It has {', '.join(sorted(known))}."
        )
    beside = {"baseline": str(path.parent / str(table["baseline"]))} if "baseline" in table else {}
    return {**table, **beside}


def _limits(named: dict[str, Any], baseline: str | None) -> Limits:
    from snapana.analyses.check import Limits, parse_leak, parse_tolerance
    from snapana.units import parse_size

    if not named and baseline is None:
        raise SnapanaError(
            "usage.check",
            "There is nothing to check.",
            f"Give --max-allocated, --max-leak, --baseline or another limit, or a table [{_TABLE}] in pyproject.toml.",
        )
    if baseline is None and {"tolerance", "strict_reserved"} & set(named):
        raise SnapanaError("usage.check", "--tolerance and --strict-reserved go with --baseline.")
    utilization = named.get("min_utilization")
    if utilization is not None:
        utilization = _share(str(utilization))
    sizes = {name: parse_size(str(named[name])) for name in ("max_allocated", "max_reserved") if name in named}
    return Limits(
        max_allocated=sizes.get("max_allocated"),
        max_reserved=sizes.get("max_reserved"),
        max_leak=parse_leak(str(named["max_leak"])) if "max_leak" in named else None,
        min_utilization=utilization,
        tolerance=parse_tolerance(str(named.get("tolerance", "2%"))),
        strict_reserved=_switch(named.get("strict_reserved", False)),
    )


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise SnapanaError("usage.config", f"strict_reserved is {value!r}; it is true or false.")
    return value


def _share(text: str) -> float:
    text = text.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SnapanaError("usage.check", f"--min-utilization {text!r} is no share.", "Write it like 0.8 or 80%.")
    return share
