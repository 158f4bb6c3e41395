"""What the program costs: `python -m bench.cost`. Writes bench/results.json and bench/results.md.

On a local cluster that `make up` has brought up: `pulumi up` of stack dev's deployment against a bare Pulumi program with the
same objects, in turn (A B A B ...), the warm `make up`, and the memory of the cluster with the dev stack.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local import control_plane, pulumi
from local.state import CHECKOUT, locate
from render import render_deployment
from rules import Source, read

RUNS = 5
HERE = Path(__file__).resolve().parent
BENCHED = "bench-pd"
STACK = "bench"


class Program:
    """One Pulumi program, driven as a user would."""

    def __init__(self, directory: Path, config_file: Path) -> None:
        self.directory = directory
        self.config_file = config_file
        self.environment = pulumi.find(locate(), print).environment

    def run(self, *arguments: str) -> None:
        """``pulumi ARGUMENTS`` on the bench stack."""
        options = ["--stack", STACK, "--config-file", str(self.config_file), "--non-interactive"]
        done = subprocess.run(
            ["pulumi", *arguments, *(options if arguments[0] != "stack" else [])],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"pulumi {' '.join(arguments)} failed in {self.directory}:\n{done.stdout}{done.stderr}")

    def up(self) -> None:
        """``pulumi up`` without a preview."""
        self.run("up", "--yes", "--skip-preview")

    def destroy(self) -> None:
        """``pulumi destroy`` without a preview."""
        self.run("destroy", "--yes", "--skip-preview")


def declared(ratio: str) -> dict[str, Any]:
    """Stack dev's deployment under another name, on Kthena as it is."""
    config = Source("", (CHECKOUT / "Pulumi.dev.yaml").read_text()).config
    config["cluster"]["controlPlane"] = {"install": False}
    (deployment,) = config["deployments"].values()
    config["deployments"] = {BENCHED: {**deployment, "ratio": ratio, "model": {"served": BENCHED, "weightSize": "1Gi"}}}
    # one die a pod, so that it fits beside stack dev
    for role in ("prefill", "decode"):
        config["deployments"][BENCHED][role] = {
            "parallelism": {"dp": 1, "tp": 1},
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
        }
    config["deployments"][BENCHED] |= {"hostNetwork": False, "sharedMemory": "1Gi"}
    config["cluster"]["npu"].pop("nodes")
    return config


def main() -> None:
    """Measure and write the results."""
    locate().create()
    work = locate().directory / "bench"
    work.mkdir(parents=True, exist_ok=True)
    ours = Program(CHECKOUT, work / f"Pulumi.{STACK}.yaml")
    bare = Program(HERE / "bare", work / f"bare.{STACK}.yaml")
    set_ours, set_bare = _setters(work, ours, bare)
    set_ours("1P1D")
    set_bare("1P1D")
    for program in (ours, bare):
        program.run("stack", "select", "--create", STACK)
    rows: dict[str, dict[str, list[float]]] = {}
    for _ in range(RUNS):
        for name, program, set_ratio in (("kthena-pd", ours, set_ours), ("bare", bare, set_bare)):
            set_ratio("1P1D")
            measured = {"up": _timed(program.up), "up without changes": _timed(program.up)}
            set_ratio("2P1D")
            measured |= {"up after a ratio edit": _timed(program.up), "destroy": _timed(program.destroy)}
            for row, seconds in measured.items():
                rows.setdefault(row, {}).setdefault(name, []).append(seconds)
            _wait_for_pods(program)
    warm = [_timed(lambda: _make("up")) for _ in range(RUNS)]
    results = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "runs": RUNS,
        "seconds": rows,
        "warm make up, seconds": warm,
        "memory of the local cluster with stack dev, MiB": _memory(),
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (HERE / "results.md").write_text(_table(results))
    print(_table(results))


def _setters(work: Path, ours: Program, bare: Program) -> tuple[Callable[[str], None], Callable[[str], None]]:
    def set_ours(ratio: str) -> None:
        config = {f"kthena-pd:{key}": value for key, value in declared(ratio).items()}
        ours.config_file.write_text(json.dumps({"config": config}))

    def set_bare(ratio: str) -> None:
        stack = read(declared(ratio))
        rendered = render_deployment(stack.deployments[BENCHED], stack.cluster)
        annotations = {
            "pulumi.com/waitFor": json.dumps(
                ["condition=Available", "jsonpath={.status.updatedReplicas}=1", "jsonpath={.status.availableReplicas}=1"]
            ),
            "pulumi.com/deletionPropagationPolicy": "background",
        }
        rendered.stable.model_serving["metadata"]["annotations"] = annotations
        (work / "objects.json").write_text(json.dumps(rendered.objects))
        config = {"bare:context": "kthena-pd-local", "bare:objects": str(work / "objects.json")}
        bare.config_file.write_text(json.dumps({"config": config}))

    return set_ours, set_bare


def _timed(work: Callable[[], object]) -> float:
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def _make(target: str) -> None:
    subprocess.run(["make", "-s", target], cwd=CHECKOUT, check=True, capture_output=True)


def _wait_for_pods(program: Program) -> None:
    selector = f"--selector=modelserving.volcano.sh/name={BENCHED}"
    command = ["kubectl", "wait", "pods", "--for=delete", "--timeout=60s", selector]
    subprocess.run(command, env=program.environment, check=False, capture_output=True)


def _memory() -> dict[str, float]:
    """Proportional memory (PSS, MiB) of the cluster's programs and all that they started, pods among them, by program."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    found = {component.pid for component in control_plane.status() if component.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    total: dict[str, float] = {}
    for pid in found:
        process = Path("/proc", str(pid))
        rollup = process.joinpath("smaps_rollup").read_text()
        name = process.joinpath("comm").read_text().strip()
        total[name] = (
            total.get(name, 0) + sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
        )
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _table(results: dict[str, Any]) -> str:
    lines = [
        f"Median of {results['runs']} runs, in turn, on {results['machine']['cores']} cores; seconds.",
        "",
        "| | kthena-pd | bare program | median of the ratios |",
        "|---|---|---|---|",
    ]
    for row, measured in results["seconds"].items():
        ratios = [ours / bare for ours, bare in zip(measured["kthena-pd"], measured["bare"], strict=True)]
        ours, bare = (statistics.median(measured[name]) for name in ("kthena-pd", "bare"))
        lines.append(f"| {row} | {ours:.2f} | {bare:.2f} | {statistics.median(ratios):.2f} |")
    warm = statistics.median(results["warm make up, seconds"])
    memory = results["memory of the local cluster with stack dev, MiB"]
    lines += ["", f"Warm `make up`: {warm:.1f} s. Local cluster with stack dev: {sum(memory.values()):.0f} MiB."]
    lines += ["", ", ".join(f"{name} {mebibytes:.0f}" for name, mebibytes in memory.items()), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
