"""Failures that users have reported, and recipes that work, as stack files: ``tests/corpus``.

Each file names its source and the codes that it must get; ``none`` must get no error, warnings aside.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rules import Finding, Source, StackError, read
from tests import stacks

CORPUS = sorted((stacks.ROOT / "tests" / "corpus").glob("*.yaml"))


def codes(file: Path) -> list[Finding]:
    source = Source(file.name, file.read_text())
    warnings: list[Finding] = []
    try:
        read(source.config, source, warn=warnings.append)
    except StackError as error:
        return list(error.findings)
    return warnings


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_a_known_case_gets_the_findings_that_it_should(file: Path) -> None:
    source, expectation = file.read_text().splitlines()[:2]
    assert source.startswith("# ")
    expected = expectation.removeprefix("# expect: ").split()
    found = codes(file)
    if expected == ["none"]:
        assert [finding for finding in found if finding.severity == "error"] == []
        return
    assert all(re.fullmatch(r"PD\d{3}", code) for code in expected)
    assert sorted(finding.code for finding in found) == expected
    assert all(finding.line for finding in found)


def test_the_corpus_has_failures_and_working_recipes() -> None:
    working = [file for file in CORPUS if "# expect: none" in file.read_text()]
    assert len(working) >= 3
    assert len(CORPUS) - len(working) >= 10
