"""Pulumi with a home, a backend and a kubeconfig of the project's own: nothing of the user's is read or written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cli.pulumi import PulumiError, end_orphans, interrupts_are_pulumis, locks, mend
from local import toolchain
from local.errors import LocalError
from local.state import CHECKOUT, State
from rules.finding import PROJECT

DOWNLOAD_SECONDS = 120


class Pulumi:
    """The Pulumi command line for one local cluster.

    Args:
        state: of the cluster
        search: directories that come first on PATH: where ``pulumi``, its language host and ``kubectl`` are
        config_file: stack file to use in place of ``Pulumi.<stack>.yaml``
    """

    def __init__(self, state: State, search: Iterable[Path], config_file: Path | None = None) -> None:
        self.state = state
        self.search = tuple(search)
        self.config_file = config_file

    @property
    def variables(self) -> dict[str, str]:
        """Environment that makes a plain ``pulumi`` or ``kubectl`` work on the local cluster."""
        interpreter = Path(sys.executable).parent  # so that `python -m local` is this one, too
        return {
            "KUBECONFIG": str(self.state.kubeconfig),
            "PATH": os.pathsep.join([str(interpreter), *map(str, self.search), os.environ.get("PATH", "")]),
            "PULUMI_HOME": str(self.state.pulumi / "home"),
            "PULUMI_BACKEND_URL": f"file://{self.state.pulumi / 'backend'}",
            "PULUMI_CONFIG_PASSPHRASE": "",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """This process's environment with the variables over it."""
        return {**os.environ, **self.variables}

    def run(self, *arguments: str, capture: bool = True, check: bool = True) -> subprocess.CompletedProcess[str]:
        """``pulumi ARGUMENTS``; what it prints is returned, or shown as it comes with ``capture=False``.

        Raises:
            LocalError: it failed and ``check`` is set.
        """
        for directory in ("home", "backend"):
            (self.state.pulumi / directory).mkdir(parents=True, exist_ok=True)
        config = ["--config-file", str(self.config_file)] if self.config_file and _takes_config(arguments) else []
        interactive = not capture and sys.stdout.isatty()
        command = [arguments[0], *config, *([] if interactive else ["--non-interactive"]), *arguments[1:]]
        with nullcontext() if capture else interrupts_are_pulumis():
            done = subprocess.run(
                ["pulumi", *command],
                cwd=CHECKOUT,
                env=self.environment,
                capture_output=capture,
                text=True,
                check=False,
            )
        if check and done.returncode:
            said = f":\n{done.stdout}{done.stderr}" if capture else ", see above"
            raise LocalError(f"pulumi {' '.join(arguments)} failed{said}")
        return done

    def select(self, stack: str) -> None:
        """Make ``stack`` the current one, creating it if need be."""
        self._mend()
        self.run("stack", "select", "--create", stack)

    def outputs(self, stack: str) -> dict[str, Any]:
        """Outputs of the last ``up``."""
        found: dict[str, Any] = json.loads(self.run("stack", "output", "--json", "--stack", stack).stdout)
        return found

    def kubectl(self, *arguments: str) -> str:
        """What ``kubectl ARGUMENTS`` prints.

        Raises:
            LocalError: it failed.
        """
        done = subprocess.run(["kubectl", *arguments], env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LocalError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done.stdout

    def flags(self, namespace: str, name: str) -> dict[str, str]:
        """Flags of the Deployment ``name``'s program; empty if there is none."""
        found = self.kubectl(*f"get deployment {name} --namespace={namespace} --ignore-not-found --output=json".split())
        arguments = json.loads(found)["spec"]["template"]["spec"]["containers"][0]["args"] if found else []
        return {flag: value for flag, _, value in (argument.partition("=") for argument in arguments)}

    def free_dead_lock(self, stack: str) -> list[int]:
        """Release the stack's lock where its holder on this machine is dead, and end what that left running.

        Returns:
            Process ids of the dead holders; empty if there was nothing to release, or somebody may be at work.

        Raises:
            LocalError: what was left behind can't be read, or doesn't end.
        """
        self._mend()
        try:
            held = locks(self.state.pulumi / "backend", PROJECT, stack)
            if not held or not all(lock.is_dead for lock in held):
                return []
            end_orphans(self.state.pulumi / "home", CHECKOUT)
        except PulumiError as error:
            raise LocalError(str(error)) from error
        self.run("cancel", "--yes", stack)
        return [lock.pid for lock in held]

    def _mend(self) -> None:
        try:
            mend(self.state.pulumi / "backend")
        except PulumiError as error:
            raise LocalError(str(error)) from error


def find(state: State, say: Callable[[str], None], config_file: Path | None = None) -> Pulumi:
    """Pulumi and its Kubernetes plugin: those of the machine, downloaded, or built.

    Raises:
        LocalError: they are to be had in none of these ways.
    """
    folders = toolchain.ensure(
        [*toolchain.CLUSTER_TOOLS, *(() if _installed(state, say) else (*toolchain.PULUMI_TOOLS, *toolchain.PLUGIN_TOOLS))], say
    )
    if "pulumi" in folders:
        _lay_beside(folders["pulumi-language-python"], folders["pulumi"])
    pulumi = Pulumi(state, [folders[name] for name in ("pulumi", "kubernetes") if name in folders], config_file)
    if not _has_plugin(pulumi):
        plugin = folders.get("pulumi-resource-kubernetes")
        if plugin is None and not _download_plugin(pulumi, say):
            plugin = toolchain.ensure(toolchain.PLUGIN_TOOLS, say)["pulumi-resource-kubernetes"]
        if plugin:
            binary = plugin / "pulumi-resource-kubernetes"
            pulumi.run("plugin", "install", "resource", "kubernetes", toolchain.KUBERNETES_PLUGIN, "--file", str(binary))
    return pulumi


def _lay_beside(language_host: Path, engine: Path) -> None:
    """Pulumi takes the language host that lies beside it as its own; any other on PATH makes it warn at every command."""
    for program in language_host.iterdir():
        link = engine / program.name
        if not link.exists() or not link.samefile(program):
            fresh = link.with_name(f".{link.name}-{os.getpid()}")
            fresh.hardlink_to(program)
            fresh.replace(link)  # at once: another checkout may be running it


def _installed(state: State, say: Callable[[str], None]) -> bool:
    """Whether a recent enough Pulumi with its Python language host is on PATH."""
    if not shutil.which("pulumi"):
        return False
    if not shutil.which("pulumi-language-python"):
        say("the pulumi on PATH is left alone: pulumi-language-python is not beside it")
        return False
    # its home is the project's own: even this makes Pulumi write a log
    environment = {**os.environ, "PULUMI_HOME": str(state.pulumi / "home")}
    said = subprocess.run(["pulumi", "version"], env=environment, capture_output=True, text=True, check=False).stdout
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", said)
    if found is None or tuple(map(int, found.groups())) < toolchain.MINIMUM_PULUMI:
        minimum = ".".join(map(str, toolchain.MINIMUM_PULUMI))
        its = said.strip() or "of an unknown version"
        say(f"the pulumi on PATH is left alone: it is {its}, and {minimum} or newer is needed")
        return False
    return True


def _has_plugin(pulumi: Pulumi) -> bool:
    listed = json.loads(pulumi.run("plugin", "ls", "--json").stdout)
    return any(
        plugin["name"] == "kubernetes" and plugin["version"].lstrip("v") == toolchain.KUBERNETES_PLUGIN for plugin in listed
    )


def _download_plugin(pulumi: Pulumi, say: Callable[[str], None]) -> bool:
    say(f"asking Pulumi for its kubernetes plugin {toolchain.KUBERNETES_PLUGIN}")
    try:
        subprocess.run(
            ["pulumi", "plugin", "install", "resource", "kubernetes", toolchain.KUBERNETES_PLUGIN],
            env=pulumi.environment,
            capture_output=True,
            check=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        say("it can't be downloaded here, so it is built")
        return False
    return True


def _takes_config(arguments: tuple[str, ...]) -> bool:
    return arguments[0] in ("config", "up", "preview", "refresh", "destroy")


def shell_exports(variables: Mapping[str, str]) -> str:
    """``export`` lines for ``eval``."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
