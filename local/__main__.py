"""``python -m local COMMAND``: what the Makefile's targets do."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from local import chat, cluster, control_plane, logs, pulumi
from local.errors import LocalError
from local.state import CHECKOUT, OVERRIDE, State, is_free, locate
from models.cluster import ControlPlane
from models.deployment import Deployment
from models.stack import Stack
from rules import StackError, read_file

NOBODYS = "127.255.255.254"
"""an address of this machine where nobody listens who does not listen on all of them"""
WEBHOOK_SERVICES = 8443
"""port of the Services of Kthena's webhooks (render/control_plane.py)"""
QUESTION = "Why are prefill and decode separated?"


def main() -> int:
    """Run one command; a mistake of the user is a message and exit code 1, never a traceback."""
    arguments = _parser().parse_args()
    try:
        arguments.run(arguments)
    except LocalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m local", description="The local cluster.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, run: Callable[[argparse.Namespace], None], summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary)
        added.set_defaults(run=run)
        return added

    up = command(
        "up",
        lambda given: _up(given.stack, given.config_file or CHECKOUT / f"Pulumi.{given.stack}.yaml", given.pods, given.cluster),
        "start the cluster, `pulumi up`, one chat request",
    )
    up.add_argument("--stack", default="dev")
    up.add_argument("--config-file", type=Path, help="stack file, if not Pulumi.STACK.yaml")
    up.add_argument("--cluster", type=Path, default=cluster.DESCRIPTION, help="description, such as one of local/clusters")
    up.add_argument("--pods", choices=("processes", "simulated"), help="simulated: pods are objects only, for scale")
    command("down", lambda _: control_plane.down(_say), "stop all of it; objects and Pulumi state stay for the next up")
    command("clean", lambda _: _clean(locate()), "down, and forget objects, Pulumi state and logs")
    command("status", lambda _: _status(locate()), "say what runs")
    command("env", lambda _: _env(locate()), "print exports that point pulumi and kubectl at the cluster")
    log = command("logs", lambda given: _logs(locate(), given.pod, given.container), "show the log of a pod or of a program")
    log.add_argument("pod", help="its name, namespace/name, or a program such as kube-apiserver")
    log.add_argument("container", nargs="?")
    return parser


def _say(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def _up(stack: str, config_file: Path, pods: str | None, simulated: Path) -> None:
    begin = time.monotonic()
    declared = _declared(config_file)
    description = cluster.load(simulated, pods)
    program = pulumi.find(locate(), _say, config_file)
    options = stack_options(stack, config_file)
    installs = declared.cluster.control_plane.install
    if installs and not any(component.pid for component in control_plane.status()):
        check_ports(declared.cluster.control_plane, None, options)
    control_plane.up(description, _say)
    program.select(stack)
    dead = program.free_dead_lock(stack)
    if dead:
        _say(f"released the stack's lock, which an ended pulumi (pid {dead[0]}) had left")
    if installs:
        check_ports(declared.cluster.control_plane, program, options)
    _say(f"pulumi up, stack {stack}")
    program.run("up", "--yes", "--skip-preview", "--suppress-progress", "--stack", stack, capture=False)
    if dead:
        program.run("refresh", "--yes", "--clear-pending-creates", "--stack", stack)
    if description.pods == "simulated":
        _say("pods are simulated as objects only: there is no engine to answer a chat request")
        return
    router_url = program.outputs(stack)["router"]
    for deployment in declared.deployments.values():
        _ask(program, deployment, router_url)
    _say(f"done in {time.monotonic() - begin:.1f} s")
    print(next_steps(options, declared))


def _declared(file: Path) -> Stack:
    """The stack file, checked before anything is built or started."""
    if not file.exists():
        there = sorted(path.name.split(".")[1] for path in CHECKOUT.glob("Pulumi.*.yaml"))
        raise LocalError(f"{file.name} does not exist", f"stacks here: {', '.join(there)}")
    try:
        return read_file(Path(os.path.relpath(file)))[0]
    except StackError as error:
        raise LocalError(str(error)) from error
    except OSError as error:
        raise LocalError(f"{file}: {error.strerror}") from error


def check_ports(control: ControlPlane, program: pulumi.Pulumi | None, options: str) -> None:
    """Say in advance what would otherwise be a crash loop of router or controller, or webhooks that nobody reaches.

    Args:
        control: as it is declared
        program: for what runs already; None where the cluster is down and all that listens is others'
        options: that lead ``pulumi`` to the stack
    """
    names = ("kthena-router", "kthena-controller-manager")
    router, controller = (program.flags(control.namespace, name) if program else {} for name in names)
    listen = {  # on all addresses
        "router.port": (control.router.port, router.get("--port")),
        "router.debugPort": (control.router.debug_port, router.get("--debug-port")),
        "router.webhookPort": (control.router.webhook_port, router.get("--webhook-port")),
        "controller.webhookPort": (control.controller.webhook_port, controller.get("--port")),
    }
    wanted = Counter([WEBHOOK_SERVICES, *(port for port, _ in listen.values())])
    taken = {
        key: port
        for key, (port, running) in listen.items()
        if wanted[port] > 1 or (running != str(port) and not is_free("0.0.0.0", port))
    }
    if taken:
        raise LocalError(
            f"router and controller are to listen on {', '.join(map(str, taken.values()))}, in use on this machine already",
            f"end what listens there, or choose others, after {_environment()}:"
            + "".join(f"\n     pulumi config set {options} --path 'kthena-pd:cluster.controlPlane.{key}' PORT" for key in taken),
        )
    if not is_free(NOBODYS, WEBHOOK_SERVICES):
        raise LocalError(
            f"a program listens on port {WEBHOOK_SERVICES} of all addresses of this machine, where Kthena's webhooks are reached",
            f"end it, or let it listen on 127.0.0.1:{WEBHOOK_SERVICES} only",
        )


def _ask(program: pulumi.Pulumi, deployment: Deployment, router_url: str) -> None:
    answer = chat.chat(router_url, deployment.model.served, QUESTION)
    evidence = chat.kv_evidence(program.state.pods, answer.request_id)
    print(f"\n{deployment.name}: {deployment.groups} x ({deployment.ratio})\n{chat.explain(answer, evidence)}\n", flush=True)
    if not evidence.proven:
        raise LocalError("the answer came without proof that KV cache went from prefill to decode")


def stack_options(stack: str, config_file: Path) -> str:
    """Options that lead ``pulumi`` to the stack and its file."""
    usual = config_file.absolute() == CHECKOUT / f"Pulumi.{stack}.yaml"
    return f"--stack {stack}" + ("" if usual else f" --config-file {shlex.quote(str(config_file.absolute()))}")


def _environment() -> str:
    """The command that leads a shell to this cluster."""
    directory = os.environ.get(OVERRIDE)
    chosen = f"export {OVERRIDE}={shlex.quote(str(Path(directory).absolute()))}; " if directory else ""
    return f'{chosen}eval "$(make -s env)"'


def next_steps(options: str, declared: Stack) -> str:
    """What may be done with a cluster that is up."""
    name = next(iter(declared.deployments), "NAME")
    return (
        f"next      {_environment()}      # pulumi and kubectl for this cluster\n"
        f"          pulumi config set {options} --path 'kthena-pd:deployments.{name}.ratio' 2P1D\n"
        f"          pulumi up {options}\n"
        "          make status | make logs POD=... | make down"
    )


def _env(state: State) -> None:
    print(pulumi.shell_exports(pulumi.find(state, _say).variables))


def _clean(state: State) -> None:
    control_plane.down(_say)
    if state.owned():
        shutil.rmtree(state.directory)
        _say(f"removed {state.directory}")


def _status(state: State) -> None:
    components = control_plane.status(state)
    for component in components:
        port = f"127.0.0.1:{component.port}" if component.port else ""
        memory = f"{component.memory / 2**20:5.0f} MiB" if component.pid else ""
        up = f"up {component.uptime:.0f} s" if component.pid else ""
        print(f"{component.name:26}{component.state:10}{component.pid or '':>8}  {memory:>10}  {up:12}{port}")
    if any(component.name == "kube-apiserver" and component.pid for component in components):
        query = "get pods --all-namespaces --output=wide --request-timeout=5s"
        print(f"\n{pulumi.find(state, _say).kubectl(*query.split())}", end="")


def _logs(state: State, pod: str, container: str | None) -> None:
    component = state.logs / f"{pod}.log"
    if pod in control_plane.COMPONENTS and component.exists():
        print(component.read_text(errors="replace"), end="")
        return
    namespace, _, name = pod.rpartition("/")
    for log in logs.find(state.pods, name, namespace or None, container):
        print(f"==> {log.namespace}/{log.pod} {log.container}", flush=True)
        with log.file.open(errors="replace") as lines:
            shutil.copyfileobj(lines, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
