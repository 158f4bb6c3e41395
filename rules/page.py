"""The reference of all rules as Markdown: `make docs` writes what this module makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rules import example
from rules.check import CHECKS, read
from rules.finding import Check, Finding, StackError

INDEX = "rules.md"
DIRECTORY = "rules"
_HEAD = """\
# Rules

What `pd check`, `pulumi preview`, `pulumi up` and `make up` check before anything is changed. All findings are shown together,
each with its code, its place and path in the stack file, what is wrong, and what would be right. An error stops. A warning is
shown; where it is meant, say so with a reason, and it is not shown any more:

```yaml
kthena-pd:deployments:
  NAME:
    accept: {PD703: "measured: 200 MiB are in use"}
```

Each page has an example. Where it names no cluster, that is one of four A3 servers.

| code | severity | what holds |
|---|---|---|
"""


def pages() -> dict[str, str]:
    """File below ``docs`` -> its text: the index, and a page for each code."""
    rows = (f"| [{check.code}]({DIRECTORY}/{check.code}.md) | {check.severity} | {check.name} |\n" for check in CHECKS)
    return {INDEX: _HEAD + "".join(rows)} | {f"{DIRECTORY}/{check.code}.md": _page(check) for check in CHECKS}


def published(docs: Path) -> dict[str, str]:
    """What ``docs`` has of these pages, and of others in their directory."""
    files = (file for file in (docs / INDEX, *sorted((docs / DIRECTORY).glob("*.md"))) if file.exists())
    return {str(file.relative_to(docs)): file.read_text(encoding="utf-8") for file in files}


def publish(docs: Path) -> None:
    """Write the pages, and take those of rules away that are gone."""
    (docs / DIRECTORY).mkdir(parents=True, exist_ok=True)
    made = pages()
    for name, text in made.items():
        (docs / name).write_text(text, encoding="utf-8")
    for name in published(docs).keys() - made.keys():
        (docs / name).unlink()


def _page(check: Check) -> str:
    return (
        "\n\n".join([f"# {check.code}: {check.name}", f"*{check.severity}*. {check.why}", *_example(check.code), *_end(check)])
        + "\n"
    )


def _example(code: str) -> Iterator[str]:
    if code not in example.codes():
        return
    yield _fenced("yaml", example.written(code, "wrong"))
    yield "is told"
    yield _fenced("text", "\n".join(map(str, _findings(code))))
    yield "and is right as"
    yield _fenced("yaml", example.written(code, "right"))


def _findings(code: str) -> list[Finding]:
    warnings: list[Finding] = []
    try:
        read(example.example(code).wrong, warn=warnings.append)
    except StackError as error:
        return list(error.findings)
    return warnings


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _end(check: Check) -> Iterator[str]:
    yield f"Source: {check.source}."
    yield f"[All rules](../{INDEX})"


if __name__ == "__main__":
    publish(Path(sys.argv[1]))
