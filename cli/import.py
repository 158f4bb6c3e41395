# ruff: noqa: N999 - the module of the command that has this name
"""``pd import``: a stack file of manifests that run already."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence, Sized
from pathlib import Path

import catalog
from importer import Imported, Manifest, ManifestError, import_manifests, read_manifests
from importer.adoption import CONTROL_PLANE, adoption, provider_urn
from importer.findings import CODES
from importer.stack import Object
from importer.text import stack_text
from rules.finding import Finding

DONE, FOUND, UNREADABLE = 0, 1, 2
"""exit codes"""

ROLLED = """\
The last command makes new pods of {names}: their templates are rendered anew. In place, whole groups go
down and come again; `pd diff` says how many serve meanwhile. To have the new pods beside the old ones instead,
adopt nothing: declare `rollout: {{strategy: BlueGreen}}`, run `pulumi up`, and delete the old objects once the
new ones serve."""
UNADOPTED = """\
{file} is not written: {names} can't be adopted before it can be rendered, and an `up` without that would write
over what runs. Add what is missing to the manifests, for example a flag to the start script, and import again."""
HELP = """\
Make a stack file of the manifests of P/D deployments: ModelServing, ModelServer, ModelRoute, AutoscalingPolicy, and ConfigMaps
with their start scripts, as they are applied or as `kubectl get -o yaml` shows them; also with v0.x fields. Says what is wrong in
them, what is not taken over, and what the stack does instead. What the stack renders is compared with what was given: every
difference is one of the findings. Nothing is asked of a cluster, and nothing in it is changed."""

HELP_MORE = """\
examples:
  pd import modelserving.yaml router.yaml
  pd import --to Pulumi.prod.yaml --adopt adopt.json live.yaml
  kubectl get modelservings,modelservers,modelroutes,configmaps,autoscalingpolicies -n serving -o yaml | pd import -

exit code:
  0  the stack file is written, and `pd check` has no errors in it
  1  it is written, and has errors that are said; or nothing could be taken over
  2  a file can't be read or written, or the command line is wrong

Each code has a line in docs/import.md or a page in docs/rules."""


def define(command: argparse.ArgumentParser) -> None:
    """Arguments and help."""
    command.description, command.epilog = HELP, HELP_MORE
    command.add_argument("files", nargs="+", metavar="FILE", help="manifests, several in a file if you like; - is standard input")
    command.add_argument("--to", type=Path, metavar="STACKFILE", help="where the stack file goes; default: standard output")
    command.add_argument(
        "--adopt", type=Path, metavar="FILE", help="write what `pulumi import --file` takes, and say what to run"
    )
    command.add_argument("--npu", choices=tuple(catalog.npu_families()), help="NPU family, where the manifests don't tell")
    plugins = sorted({plugin for family in catalog.npu_families().values() for plugin in family.device_plugins})
    command.add_argument("--device-plugin", choices=plugins, help="device plugin of the cluster, likewise")
    command.add_argument("--force", action="store_true", help="write over files that are there")
    command.set_defaults(run=run)


class UnusableError(Exception):
    """A file or the command line; the message says why."""


def run(given: argparse.Namespace) -> int:
    """Read, write, and say what there is to say, on standard error where the stack file goes to standard output.

    Returns:
        The exit code.
    """
    try:
        _check_targets(given)
        manifests = _read(given.files)
        if not manifests:
            raise UnusableError(f"no Kubernetes object is in {', '.join(given.files)}")
        imported = import_manifests(manifests, npu=given.npu, device_plugin=given.device_plugin)
        out = sys.stdout if given.to else sys.stderr
        print(report(imported), file=out)
        if not imported.config["deployments"]:
            print("\nnothing was written: no deployment could be taken over", file=out)
            return FOUND
        _write(imported, given)
    except UnusableError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNREADABLE
    return FOUND if any(finding.severity == "error" for finding in imported.of_stack) else DONE


def _check_targets(given: argparse.Namespace) -> None:
    for target in filter(None, (given.to, given.adopt)):
        if target.exists() and not given.force:
            raise UnusableError(f"{target} is there already; --force writes over it")
    targets = [path.resolve() for path in (given.to, given.adopt) if path]
    if len({*targets, *(Path(name).resolve() for name in given.files)}) < len(targets) + len({*map(Path, given.files)}):
        raise UnusableError("what is written would go over what is read, or over itself")
    if given.adopt and not given.to:
        raise UnusableError("--adopt needs --to: the stack's name is in what is adopted")
    if given.to and not _stack(given.to):
        raise UnusableError(f"{given.to} is no name of a stack file; Pulumi.NAME.yaml is")


def _read(names: Sequence[str]) -> list[Manifest]:
    found: list[Manifest] = []
    for name in names:
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
            found += read_manifests("standard input" if name == "-" else name, text)
        except OSError as error:
            raise UnusableError(f"{name}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UnusableError(f"{name} is not UTF-8") from error
        except ManifestError as error:
            raise UnusableError(str(error)) from error
    return found


def _write(imported: Imported, given: argparse.Namespace) -> None:
    text = stack_text(imported.config, [f"Made by `pd import {' '.join(given.files)}`."])
    if not given.to:
        print(text, end="")
        return
    try:
        given.to.write_text(text, encoding="utf-8")
        print(f"\n{given.to} is written.")
        if given.adopt and (incomplete := _incomplete(imported)):
            print("\n" + UNADOPTED.format(file=given.adopt, names=incomplete))
        elif given.adopt:
            file = adoption(imported.objects, _stack(given.to))
            given.adopt.write_text(json.dumps(file, indent=2) + "\n", encoding="utf-8")
            print("\n" + steps(imported, given.to, given.adopt))
    except OSError as error:
        raise UnusableError(f"{error.filename}: {error.strerror}") from error


def _stack(file: Path) -> str:
    prefix, suffix = "Pulumi.", ".yaml"
    inner = file.name.removeprefix(prefix).removesuffix(suffix)
    return inner if file.name == f"{prefix}{inner}{suffix}" and inner else ""


def report(imported: Imported) -> str:
    """All findings by their codes, and the proof."""
    blocks = []
    for title, findings in (
        ("In the manifests", imported.findings),
        ("In the new stack file, by `pd check`", imported.of_stack),
    ):
        if findings:
            blocks.append(f"{title}:\n" + "\n".join(_by_code(findings)))
    blocks.append(_proof(imported))
    return "\n\n".join(blocks)


def _by_code(findings: Sequence[Finding]) -> Iterator[str]:
    """Under each code what holds where it is kept, where the code is the importer's own."""
    for code in dict.fromkeys(finding.code for finding in sorted(findings, key=lambda one: (one.severity, one.code))):
        if code in CODES:
            yield f"  {code} ({CODES[code]})"
        for finding in findings:
            if finding.code == code:
                yield "\n".join(f"  {line}" for line in str(finding).splitlines())


def _incomplete(imported: Imported) -> str:
    """Deployments in which so much is missing that nothing is rendered."""
    return ", ".join(sorted(imported.config["deployments"].keys() - {one.deployment for one in imported.objects}))


def _proof(imported: Imported) -> str:
    if not imported.config["deployments"]:
        return "Nothing was compared."
    incomplete = _incomplete(imported)
    if incomplete and not imported.compared:
        return (
            f"{incomplete} can't be rendered before the stack file is completed, so nothing was compared: "
            "there may be more to say of the manifests than is said above."
        )
    lacking = f" {incomplete} was compared without what its stack file still lacks." if incomplete else ""
    differing = len(imported.unexplained)
    told = _counted({(finding.code, finding.file, finding.line, finding.problem) for finding in imported.findings}, "finding")
    rest = (
        f"{differing} differ and nothing explains why (IM900)" if differing else "what differs is said above, or a matter of form"
    )
    return f"{imported.compared} facts of given and rendered objects were compared, with {told}: {rest}.{lacking}"


def steps(imported: Imported, stack_file: Path, file: Path) -> str:
    """What to run to have the live objects in the stack, and what happens then."""
    stack = _stack(stack_file)
    kept = [one for one in imported.objects if one.keeps_its_name]
    renamed = [one for one in imported.objects if not one.keeps_its_name]
    rolled = sorted({one.deployment for one in kept if one.given.kind == "ModelServing" and not one.has_same_pods})
    lines = [
        f"{_counted(kept, 'object')} can be adopted. No pod is touched by these commands:",
        f"  pulumi stack select --create {stack}",
        f"  pulumi up --stack {stack} --target '{provider_urn(stack)}' --target '{CONTROL_PLANE}'",
        f"  pulumi import --stack {stack} --file {file} --protect=false --generate-code=false",
        "Then see what the stack changes, and have it changed:",
        f"  ./pd diff {stack_file}",
        f"  pulumi up --stack {stack}",
    ]
    if rolled:
        lines += ["", ROLLED.format(names=", ".join(rolled))]
    if renamed:
        lines += ["", "These get other names; delete the old ones when `pulumi up` has returned:"]
        lines += [f"  kubectl delete {_object(one)}" for one in renamed]
    return "\n".join(lines)


def _object(one: Object) -> str:
    return f"{one.given.kind.lower()} {one.given.name} --namespace {one.given.namespace}"


def _counted(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"
