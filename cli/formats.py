"""Findings as text and for machines. Every format is a function of the findings and of the number of files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rules import CHECKS, Finding
from rules.finding import dotted

Format = Callable[[Sequence[Finding], int], str]


def text(findings: Sequence[Finding], files: int) -> str:
    """For people: the findings of each file, and their number."""
    blocks = ["\n".join(map(str, of_file)) for _, of_file in groupby(findings, lambda finding: finding.file)]
    return "\n\n".join([*blocks, _summary(findings, files)]) + "\n"


def json_text(findings: Sequence[Finding], files: int) -> str:
    """One object: ``files``, ``errors`` and ``warnings`` are numbers, ``findings`` a list in the order of files and places.

    A finding has ``code``, ``severity`` (error or warning), ``file``, ``line`` and ``column`` (from 1), ``path`` (as
    `pulumi config set --path` takes it; empty where the file itself is wrong), ``problem`` and ``remedy``.
    """
    counts = _counts(findings)
    shown = [
        {
            "code": finding.code,
            "severity": finding.severity,
            "file": finding.file,
            "line": finding.line,
            "column": finding.column,
            "path": _path(finding),
            "problem": finding.problem,
            "remedy": finding.remedy,
        }
        for finding in findings
    ]
    whole = {"files": files, "errors": counts["error"], "warnings": counts["warning"], "findings": shown}
    return json.dumps(whole, indent=2) + "\n"


def github(findings: Sequence[Finding], files: int) -> str:
    """Workflow commands of GitHub Actions, one a line, and the number of findings for the log."""
    lines = [
        f"::{finding.severity} file={_property(finding.file)},line={finding.line},col={finding.column},"
        f"title={_property(finding.code)}::{_data(_message(finding))}"
        for finding in findings
    ]
    return "\n".join([*lines, _summary(findings, files)]) + "\n"


def sarif(findings: Sequence[Finding], files: int) -> str:  # noqa: ARG001 - a format has both
    """SARIF 2.1.0, with the page of each rule."""
    numbers = {check.code: number for number, check in enumerate(CHECKS)}
    rules = [
        {
            "id": check.code,
            "name": check.name.title().replace(" ", ""),
            "shortDescription": {"text": check.name},
            "fullDescription": {"text": check.why},
            "help": {"text": f"{check.why}\nSource: {check.source}"},
            "defaultConfiguration": {"level": check.severity},
        }
        for check in CHECKS
    ]
    results = [
        {
            "ruleId": finding.code,
            "ruleIndex": numbers[finding.code],
            "level": finding.severity,
            "message": {"text": _message(finding)},
            "locations": [_location(finding)],
        }
        for finding in findings
    ]
    driver = {"name": "kthena-pd", "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


FORMATS: Mapping[str, Format] = {"text": text, "json": json_text, "sarif": sarif, "github": github}


def _location(finding: Finding) -> dict[str, Any]:
    file = Path(finding.file)
    region = {"startLine": finding.line, "startColumn": finding.column}
    uri = file.as_uri() if file.is_absolute() else quote(file.as_posix())
    place: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
    return place | ({"logicalLocations": [{"fullyQualifiedName": _path(finding)}]} if finding.path else {})


def _message(finding: Finding) -> str:
    path = f"{_path(finding)}: " if finding.path else ""
    return f"{path}{finding.problem}\n-> {finding.remedy}"


def _path(finding: Finding) -> str:
    return dotted(finding.path) if finding.path else ""


def _data(message: str) -> str:
    """Source: actions/toolkit packages/core/src/command.ts."""
    return message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


def _counts(findings: Sequence[Finding]) -> Counter[str]:
    return Counter(finding.severity for finding in findings)


def _summary(findings: Sequence[Finding], files: int) -> str:
    counts = _counts(findings)
    found = " and ".join(_counted(counts[severity], severity) for severity in ("error", "warning") if counts[severity])
    return f"{found or 'no findings'} in {_counted(files, 'file')}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
