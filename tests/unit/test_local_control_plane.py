"""The control plane's pure parts: commands of its programs, its kubeconfig and certificates."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from cryptography import x509

from local import volcano
from local.api import Api
from local.control_plane import (
    COMPONENTS,
    check_service_range,
    kubeconfig,
    link,
    programs,
    scheduler_configuration,
    status,
)
from local.errors import LocalError
from local.pki import Pki
from local.state import State

PORTS = {"etcd": 1, "etcd-peer": 2, "kube-apiserver": 3}
FOLDERS = {name: Path("/tools") / name for name in ("etcd", "kubernetes", "kwok", "kthena", "volcano")}


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path)
    state.create()
    for file in (state.description, state.scheduler, state.volcano):
        file.write_text("{}")
    return state


@pytest.fixture
def pki(state: State) -> Pki:
    pki = Pki(state.pki)
    pki.create()
    return pki


def test_every_component_has_a_command_in_the_order_of_start(state: State, pki: Pki) -> None:
    assert [program.name for program in programs(FOLDERS, state, pki, PORTS)] == list(COMPONENTS)


def test_volcano_runs_only_where_it_is_asked_for(state: State, pki: Pki) -> None:
    folders = {name: folder for name, folder in FOLDERS.items() if name != "volcano"}
    assert not {program.name for program in programs(folders, state, pki, PORTS)} & set(volcano.PROGRAMS)


def test_a_scheduler_is_started_anew_when_it_is_to_fill_servers_of_another_resource(state: State, pki: Pki) -> None:
    before = {one.name: one.fingerprint for one in programs(FOLDERS, state, pki, PORTS)}
    state.scheduler.write_text(scheduler_configuration(state.kubeconfig, ["huawei.com/Ascend910"]))
    state.volcano.write_text(volcano.configuration(["huawei.com/Ascend910"]))
    after = {one.name: one.fingerprint for one in programs(FOLDERS, state, pki, PORTS)}
    assert {name for name in before if before[name] != after[name]} == {"kube-scheduler", volcano.SCHEDULER}


def test_a_program_is_started_anew_when_something_that_it_depends_on_changes(state: State, pki: Pki) -> None:
    before = {one.name: one.fingerprint for one in programs(FOLDERS, state, pki, PORTS)}
    state.description.write_text('{"pods": "simulated"}')
    described = {one.name: one.fingerprint for one in programs(FOLDERS, state, pki, PORTS)}
    assert {name for name in before if before[name] != described[name]} == {"kubelet"}
    moved = {one.name: one.fingerprint for one in programs(FOLDERS, state, pki, PORTS | {"kube-apiserver": 4})}
    assert {name for name in described if described[name] != moved[name]} == set(COMPONENTS) - {"etcd"}


class FakeApi:
    """Knows one object."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self.found = found

    async def get(self, path: str) -> dict[str, Any] | None:
        assert path == "/apis/networking.k8s.io/v1/servicecidrs/kubernetes"
        return self.found


@pytest.mark.parametrize("found", [None, {"spec": {"cidrs": ["127.240.0.0/12"]}}])
def test_a_cluster_whose_services_can_be_reached_goes_on(found: dict[str, Any] | None) -> None:
    asyncio.run(check_service_range(cast("Api", FakeApi(found))))


def test_objects_of_a_version_whose_services_could_not_be_reached_are_refused_with_a_remedy() -> None:
    with pytest.raises(LocalError, match=r"10\.96\.0\.0/16(.|\n)*make clean"):
        asyncio.run(check_service_range(cast("Api", FakeApi({"spec": {"cidrs": ["10.96.0.0/16"]}}))))


def test_the_chart_is_found_under_one_name_whichever_release_it_is_of(tmp_path: Path) -> None:
    for release in ("one", "one", "two"):
        (tmp_path / release).mkdir(exist_ok=True)
        link(tmp_path / "charts" / "kthena", tmp_path / release)
        assert (tmp_path / "charts" / "kthena").resolve() == tmp_path / release
    assert [entry.name for entry in (tmp_path / "charts").iterdir()] == ["kthena"]


LISTENS = ("--listen", "--bind-address", "--secure-port", "--port", "--server-address", "--address", "--insecure")
"""beginnings of the flags that say where one of the programs listens"""


def test_nothing_listens_beyond_the_loopback_interface(state: State, pki: Pki) -> None:
    listens = {
        program.name: [one for one in program.arguments if one.startswith(LISTENS)]
        for program in programs(FOLDERS, state, pki, PORTS)
    }
    assert listens == {
        "etcd": ["--listen-client-urls=https://127.0.0.1:1", "--listen-peer-urls=https://127.0.0.1:2"],
        "kube-apiserver": ["--bind-address=127.0.0.1", "--secure-port=3"],
        "kube-controller-manager": ["--secure-port=0"],
        "kube-scheduler": ["--secure-port=0"],
        "kwok": [],  # serves only if told to
        "kubelet": [],  # holds its network, 127.N.255.254
        "volcano-controllers": [],  # serve only if told to
        "volcano-scheduler": [],
    }


def test_the_kubeconfig_has_one_context(pki: Pki) -> None:
    config = yaml.safe_load(kubeconfig("https://127.0.0.1:3", pki))
    assert [context["name"] for context in config["contexts"]] == [config["current-context"]] == ["kthena-pd-local"]
    assert config["users"][0]["user"]["token"] == pki.administrator_token


def test_keys_and_tokens_are_for_their_owner_only(pki: Pki) -> None:
    assert all(file.stat().st_mode & 0o077 == 0 for file in pki.directory.iterdir())


def test_the_authority_vouches_for_the_server_on_this_machine(pki: Pki) -> None:
    certificate = x509.load_pem_x509_certificate(pki.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(pki.authority.read_bytes()))
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(pki.certificate, pki.key)


def test_certificates_are_made_once(pki: Pki) -> None:
    before = pki.authority.read_bytes()
    pki.create()
    assert pki.authority.read_bytes() == before


def test_a_cluster_that_never_ran_is_stopped(tmp_path: Path) -> None:
    assert {component.state for component in status(State(tmp_path))} == {"stopped"}
