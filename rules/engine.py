"""The vLLM-Ascend release."""

from __future__ import annotations

from collections.abc import Iterator

import catalog
from models.stack import Stack
from rules.finding import Finding, in_deployment


def connector_is_in_the_engine_release(stack: Stack) -> Iterator[Finding]:
    """PD201. An engine refuses a connector it does not register. Source: catalog/engine.yaml."""
    for deployment in stack.deployments.values():
        connector = deployment.kv_transfer.connector
        since = catalog.engine().connectors[connector].since
        if catalog.before(deployment.engine.version, since):
            yield Finding(
                "PD201",
                in_deployment(deployment, "engine", "version"),
                f"{deployment.engine.version} does not have {connector}",
                f"v{since} or newer",
            )
