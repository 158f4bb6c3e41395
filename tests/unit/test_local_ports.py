"""Ports of Kthena's programs on a machine that all pods share: what would clash is said before anything is changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from local import __main__ as local_main
from local.errors import LocalError
from local.pulumi import Pulumi
from local.state import CHECKOUT, OVERRIDE
from models.cluster import Controller, ControlPlane, Router
from rules import read_file

FLAGS = {"kthena-router": ("--port", "--debug-port", "--webhook-port"), "kthena-controller-manager": ("--port",)}


class FakePulumi:
    """Knows which flags the programs run with."""

    def __init__(self, running: dict[str, tuple[int, ...]] | None = None) -> None:
        self.running = running or {}

    def flags(self, namespace: str, name: str) -> dict[str, str]:
        assert namespace == "kthena-system"
        return dict(zip(FLAGS[name], map(str, self.running.get(name, ())), strict=False))


def check(ports: list[int], running: dict[str, tuple[int, ...]] | None = None) -> None:
    """Look at a control plane with these ports of router, its debugging, its webhook, and the controller's webhook.

    The cluster is down where ``running`` does not say which ports its programs have.
    """
    port, debug_port, webhook_port, controller = ports
    router = Router(port=port, debug_port=debug_port, webhook_port=webhook_port)
    control_plane = ControlPlane(router=router, controller=Controller(webhook_port=controller))
    program = None if running is None else cast("Pulumi", FakePulumi(running))
    local_main.check_ports(control_plane, program, local_main.stack_options("dev", CHECKOUT / "Pulumi.dev.yaml"))


@pytest.fixture
def taken() -> Iterator[list[int]]:
    """Four ports on which somebody listens."""
    servers = [socket.create_server(("", 0)) for _ in range(4)]
    yield [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()


@pytest.fixture
def free() -> list[int]:
    """Four ports on which nobody listens."""
    servers = [socket.create_server(("", 0)) for _ in range(4)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


def test_ports_that_nobody_has_are_fine(free: list[int]) -> None:
    check(free)


@pytest.mark.parametrize("running", [None, {}], ids=["before the cluster is up", "when it is up"])
def test_ports_that_others_have_are_named_with_the_settings_that_move_them(
    free: list[int], taken: list[int], running: dict[str, tuple[int, ...]] | None
) -> None:
    with pytest.raises(LocalError) as caught:
        check([free[0], taken[1], free[2], taken[3]], running)
    said = str(caught.value)
    assert f"{taken[1]}, {taken[3]}, in use on this machine" in said
    assert [line.split("'")[1] for line in said.splitlines() if "config set" in line] == [
        f"kthena-pd:cluster.controlPlane.{key}" for key in ("router.debugPort", "controller.webhookPort")
    ]


def test_ports_that_router_and_controller_have_already_are_their_own(taken: list[int]) -> None:
    check(taken, {"kthena-router": tuple(taken[:3]), "kthena-controller-manager": (taken[3],)})


def test_webhooks_on_the_port_of_their_services_or_on_one_port_clash(free: list[int]) -> None:
    port, debug_port, webhook_port, _ = free
    for clashing in ([port, debug_port, webhook_port, webhook_port], [port, debug_port, 8443, webhook_port]):
        with pytest.raises(LocalError, match=r"router\.webhookPort"):
            check(clashing)


def test_a_program_in_the_way_of_the_webhooks_services_is_told(
    free: list[int], taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_main, "WEBHOOK_SERVICES", taken[0])
    with pytest.raises(LocalError, match=f"listens on port {taken[0]} of all addresses"):
        check(free)


def test_the_next_steps_lead_to_the_cluster_and_the_stack_file_that_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = read_file(CHECKOUT / "Pulumi.dev.yaml")[0]
    monkeypatch.delenv(OVERRIDE, raising=False)
    usual = local_main.next_steps(local_main.stack_options("dev", CHECKOUT / "Pulumi.dev.yaml"), declared)
    assert "--config-file" not in usual
    assert OVERRIDE not in usual
    monkeypatch.setenv(OVERRIDE, str(tmp_path / "second"))
    said = local_main.next_steps(local_main.stack_options("dev", tmp_path / "Pulumi.mine.yaml"), declared).splitlines()
    assert f'export {OVERRIDE}={tmp_path / "second"}; eval "$(make -s env)"' in said[0]
    assert [line.split("--config-file ")[1].split()[0] for line in said if "pulumi " in line and "--stack" in line] == [
        str(tmp_path / "Pulumi.mine.yaml")
    ] * 2
