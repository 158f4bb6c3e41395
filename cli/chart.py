"""Kthena's chart, templated by Pulumi's Kubernetes provider without Pulumi's engine and without a cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from google.protobuf.struct_pb2 import Struct  # type: ignore[import-untyped]
from pulumi.runtime.proto.provider_pb2 import ConfigureRequest, InvokeRequest
from pulumi.runtime.proto.provider_pb2_grpc import ResourceProviderStub

from cli.pulumi import home
from models.cluster import ControlPlane
from render.chart import TEMPLATE, ChartError, chart_objects, refusal, template_options

PROGRAM = "pulumi-resource-kubernetes"
SECONDS = 120
"""in which a registry must have answered"""
CHANNEL = (
    ("grpc.max_receive_message_length", -1),  # as large as they come: CRDs are
    ("grpc.enable_http_proxy", 0),  # the environment's proxy is for the registry, not for this machine
)


def template(control_plane: ControlPlane, values: Mapping[str, Any], directory: Path) -> tuple[dict[str, Any], ...]:
    """The chart's objects; ``directory`` is the stack file's.

    Raises:
        ChartError: the provider is not installed, or can't get at the chart, or there is a mistake in it.
    """
    options = Struct()
    options.update({"jsonOpts": template_options(control_plane, values, directory)})
    try:
        with _provider() as provider:
            answer = provider.Invoke(InvokeRequest(tok=TEMPLATE, args=options), timeout=SECONDS)
    except grpc.RpcError as error:
        raise refusal(control_plane, directory, str(error.details())) from error
    return chart_objects(MessageToDict(answer)["return"]["result"])


@contextmanager
def _provider() -> Iterator[ResourceProviderStub]:
    """The provider as a process that knows no cluster: without an engine's address it waits for whoever connects."""
    with (
        TemporaryFile("w+") as said,  # a pipe that nobody reads would stop it when full
        subprocess.Popen([_program()], stdout=subprocess.PIPE, stderr=said, text=True) as process,
    ):
        try:
            if not (port := process.stdout.readline().strip() if process.stdout else ""):
                process.wait()
                said.seek(0)
                raise ChartError(f"{PROGRAM} does not start: {said.read().strip()}")
            with grpc.insecure_channel(f"127.0.0.1:{port}", CHANNEL) as channel:
                provider = ResourceProviderStub(channel)
                # an empty kubeconfig, so that none is looked for
                provider.Configure(ConfigureRequest(variables={"kubernetes:config:kubeconfig": "{}"}), timeout=SECONDS)
                yield provider
        finally:
            process.terminate()


def _program() -> str:
    """The provider of the version that the program asks Pulumi for: where Pulumi keeps its plugins, or on PATH."""
    wanted = version("pulumi-kubernetes")
    kept = home() / "plugins" / f"resource-kubernetes-v{wanted}" / PROGRAM
    found = str(kept) if os.access(kept, os.X_OK) else shutil.which(PROGRAM)
    if found is None:
        raise ChartError(
            f"Kthena's chart is templated by Pulumi's Kubernetes provider, and {kept} is not there\n"
            f"  -> pulumi plugin install resource kubernetes {wanted}; or --without-control-plane"
        )
    return found
