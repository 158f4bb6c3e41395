"""Failures that users have reported, and recipes that work, as stack files: ``tests/corpus``.

The first line of each file names its source and what happens, the second the codes that it must get; ``none`` must get no error,
warnings aside. The README has the whole list, with those that no file can show.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from rules import Finding, Source, StackError, read
from tests import stacks

CORPUS = stacks.ROOT / "tests" / "corpus"
FILES = sorted(CORPUS.glob("*.yaml"))
README = (CORPUS / "README.md").read_text()
WORKS = ["none"]


def header(file: Path) -> tuple[str, str, list[str]]:
    """Source, what happens, expected codes."""
    first, second = file.read_text().splitlines()[:2]
    source, _, happens = first.removeprefix("# ").partition(": ")
    return source, happens, second.removeprefix("# expect: ").split()


def findings(file: Path) -> list[Finding]:
    source = Source(file.name, file.read_text())
    warnings: list[Finding] = []
    try:
        read(source.config, source, warn=warnings.append)
    except StackError as error:
        return list(error.findings)
    return warnings


def row(file: Path) -> str:
    """The README's row of one file."""
    source, happens, expected = header(file)
    link = f"[{file.stem}]({file.name})"
    return f"| {source} | {happens} | {link if expected == WORKS else f'{link}: ' + ', '.join(sorted(set(expected)))} |"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_known_case_gets_the_findings_that_it_should(file: Path) -> None:
    source, happens, expected = header(file)
    assert source
    assert happens
    found = findings(file)
    if expected == WORKS:
        assert [finding for finding in found if finding.severity == "error"] == []
        return
    assert expected
    assert sorted(finding.code for finding in found) == expected
    assert all(finding.line for finding in found)


def test_the_list_of_known_cases_and_the_files_agree() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| ") and "](" in line]
    assert sorted(rows) == sorted(map(row, FILES))


def test_the_numbers_in_the_list_are_those_of_its_rows() -> None:
    verdicts = [line.split(" | ")[-1] for line in README.splitlines() if re.match(r"\| (?!known failure|source|-)", line)]
    files = {file.name: header(file)[2] == WORKS for file in FILES}
    counts = Counter(_kind(verdict, files) for verdict in verdicts)
    assert counts.keys() == {"works", "caught", "impossible", "not caught"}
    failures = counts.total() - counts["works"]
    assert (
        f"{failures} known failures: {counts['caught']} caught, {counts['impossible']} impossible to declare, "
        f"{counts['not caught']} not caught. {counts['works']} working variants: none refused."
    ) in " ".join(README.split())


def _kind(verdict: str, works: dict[str, bool]) -> str:
    if linked := re.search(r"\]\((.+)\)", verdict):
        return "works" if works[linked[1]] else "caught"
    kind, said, _ = verdict.partition(": ")
    assert said, f"{verdict} is no verdict"
    return kind
