"""Results of a gate as text, JSON and JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from rich.text import Text

from snapana.analyses.check import Check
from snapana.analyses.compare import Comparison
from snapana.plain import plain_text
from snapana.report.terminal import plain_console, text_table
from snapana.units import format_bytes


def check_document(found: Sequence[Check], compared: Sequence[Comparison], notes: Sequence[str]) -> dict[str, Any]:
    """Give the JSON document of ``snapana check``; with a baseline what both reserved is reported as well."""
    return {
        "passed": all(one.passed for one in found),
        "checks": [
            {
                "name": one.name,
                "device": one.device,
                "limit": one.limit,
                "value": one.value,
                "passed": one.passed,
                "why": one.why or None,
                "sites": [{"site": site.site, "bytes": site.bytes} for site in one.sites],
            }
            for one in found
        ],
        "notes": list(notes),
        **(_reserved(compared[0]) if compared else {}),
    }


def _reserved(found: Comparison) -> dict[str, Any]:
    both = (found.base.device.peak_reserved, found.other.device.peak_reserved)
    return {"reserved": {"base_bytes": both[0], "bytes": both[1]}, "apart": found.apart or None}


def print_checks(found: Sequence[Check], notes: Sequence[str]) -> None:
    """Print what failed and by which lines; nothing if nothing did, but for notes."""
    out = plain_console()
    failed = [one for one in found if not one.passed]
    if failed:
        several = len({one.device for one in found}) > 1
        columns = [("check", False), ("limit", True), ("value", True), ("", False)]
        rows = [
            [
                _name(one, several=several),
                _figure(one, one.limit),
                _figure(one, one.value),
                "passed" if one.passed else "FAILED",
            ]
            for one in found
        ]
        out.print(text_table(columns, rows))
    for one in failed:
        out.print()
        out.print(Text(one.why, style="bold"))
        for site in one.sites:
            out.print(Text(f"  {format_bytes(site.bytes):>12}  {site.site}"))
    for note in notes:
        out.print(Text(f"Note: {note}."))


def junit(found: Sequence[Check], name: str) -> str:
    """Write JUnit XML, as CI pages read it: one test case for each check.

    The format is that of the JUnit task of Apache Ant.
    """
    suite = ElementTree.Element(
        "testsuite",
        {
            "name": "snapana",
            "tests": str(len(found)),
            "failures": str(sum(not one.passed for one in found)),
            "errors": "0",
            "skipped": "0",
        },
    )
    for one in found:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": f"snapana.{name}", "name": _name(one, several=True), "time": "0"}
        )
        if not one.passed:
            failure = ElementTree.SubElement(case, "failure", {"message": plain_text(one.why), "type": one.name})
            lines = [f"limit {_figure(one, one.limit)}, value {_figure(one, one.value)}"]
            lines += [f"{format_bytes(site.bytes)} {plain_text(site.site)}" for site in one.sites]
            failure.text = "\n".join(lines)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _name(one: Check, *, several: bool) -> str:
    return f"{one.name}, device {one.device}" if several else one.name


def _figure(one: Check, value: float | None) -> str:
    if value is None:
        return "unknown"
    if one.name == "min_utilization":
        return f"{value:.1%}"
    return format_bytes(value) + (" a step" if one.name == "max_leak" else "")
