"""The reference of all rules as Markdown: `make docs` writes what this module prints."""

from __future__ import annotations

from collections.abc import Iterator

from rules.check import RULES

_HEAD = """\
# Rules

What `pulumi preview`, `pulumi up` and `make up` check before anything is changed. All findings are shown together, each with
its code, the line and path in the stack file, what is wrong, and what would be right. An error stops. A warning is shown; where
it is meant, say so with a reason, and it is not shown any more:

```yaml
kthena-pd:deployments:
  NAME:
    accept: {PD703: "measured: 200 MiB are in use"}
```

`PD001` is a key, type or range that does not fit, `PD002` an unknown recipe, `PD003` an acceptance of something that does not
occur or can't be accepted. This page is generated from `rules/`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for rule in sorted(RULES, key=lambda rule: rule.code):
        yield f"## {rule.code}: {rule.name}\n\n*{rule.severity}*. {rule.why}\n\nSource: {rule.source}.\n"


if __name__ == "__main__":
    print(page(), end="")
