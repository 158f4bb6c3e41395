"""What checking a stack file costs: `python -m bench.check`. Writes bench/check.json and bench/check.md. Needs no cluster.

Three questions: does the time for a deployment stay the same when there are more of them; what does `pd check` take beyond
Python's start; and what do the program's own rooms add to the imports that every Pulumi program has. All times are those of the
processor, which what else the machine does changes least.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import catalog
from cli.check import findings

RUNS = 11
SIZES = (1, 10, 100)
HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
CLUSTER = {"npu": {"family": "A3", "devicePlugin": "cce"}, "scheduler": "default-scheduler"}


def stack_file(directory: Path, deployments: int) -> Path:
    """A stack with the recipes of A3 in turn, each deployment with edits of its own."""
    recipes = [name for name in catalog.recipe_names() if name.endswith("-a3")]
    declared = {
        f"deployment-{number}": {
            "recipe": recipes[number % len(recipes)],
            "namespace": f"namespace-{number}",
            "model": {"served": f"model-{number}"},
            "ratio": {"prefill": 1, "decode": 1},
            "decode": {"env": {"HCCL_CONNECT_TIMEOUT": "1800"}},
        }
        for number in range(deployments)
    }
    file = directory / f"Pulumi.of-{deployments}.yaml"
    content = {"config": {"kthena-pd:cluster": CLUSTER, "kthena-pd:deployments": declared}}
    file.write_text(json.dumps(content, indent=1))
    return file


def main() -> None:
    """Measure and write the results."""
    with tempfile.TemporaryDirectory() as directory:
        files = {number: stack_file(Path(directory), number) for number in SIZES}
        for file in files.values():
            findings(file)  # what is read once stays in memory
        checks = _in_turn({str(number): partial(findings, file) for number, file in files.items()})
        every_recipe = stack_file(Path(directory), len(catalog.recipe_names()))
        starts = _in_turn(
            {
                "python -c pass": _python("pass"),
                "pd check, 1 deployment": _run("./pd", "check", str(files[1])),
                "pd check, all recipes": _run("./pd", "check", str(every_recipe)),
            }
        )
        imports = _in_turn(
            {
                "models, catalog, render, rules": _python("import models.stack, catalog, render, rules"),
                "pulumi, pulumi_kubernetes": _python("import pulumi, pulumi_kubernetes"),
                "all of them": _python("import pulumi, pulumi_kubernetes, models.stack, catalog, render, rules"),
            }
        )
    results = {
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "load average at the end": os.getloadavg()[0],
        "runs": RUNS,
        "seconds of a check": checks,
        "seconds of a process": starts | imports,
    }
    (HERE / "check.json").write_text(json.dumps(results, indent=2) + "\n")
    (HERE / "check.md").write_text(_report(results))
    print(_report(results))


def _in_turn(measured: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each, A B C A B C ..., so that what else the machine does hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(RUNS):
        for name, work in measured.items():
            begin = _processor_time()
            work()
            seconds[name].append(_processor_time() - begin)
    return seconds


def _processor_time() -> float:
    """Of this process and of those that it has started, user and system."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _python(program: str) -> Callable[[], object]:
    return _run(sys.executable, "-c", program)


def _run(*command: str) -> Callable[[], object]:
    # Compiled modules are kept, as they are on a user's machine, whatever is set here.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = partial(subprocess.run, command, cwd=CHECKOUT, env=environment, stdout=subprocess.DEVNULL, check=False)
    run()
    return run


def _report(results: dict[str, Any]) -> str:
    median = {name: statistics.median(taken) for name, taken in results["seconds of a process"].items()}
    bare = median["python -c pass"]
    lines = [
        f"Medians of {results['runs']} runs, in turn; milliseconds of processor time. `make bench-check`.",
        "",
        "| deployments in the file | check | per deployment |",
        "|---|---|---|",
    ]
    for number, taken in results["seconds of a check"].items():
        milliseconds = 1000 * statistics.median(taken)
        lines.append(f"| {number} | {milliseconds:.1f} | {milliseconds / int(number):.2f} |")
    lines += ["", "| process | takes | beyond `python -c pass` |", "|---|---|---|"]
    lines += [f"| {name} | {1000 * taken:.0f} | {1000 * (taken - bare):.0f} |" for name, taken in median.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
