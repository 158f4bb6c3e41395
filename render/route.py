"""How requests find the pods: the ModelServer and the ModelRoute of a deployment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from math import gcd, lcm

from models.deployment import Deployment
from models.kthena import ModelRoute, ModelServer
from models.kthena.model_route import ModelRouteSpec, RouteRule, TargetModel
from models.kthena.model_server import (
    KVConnector,
    ModelServerSpec,
    PDGroup,
    WorkloadPort,
    WorkloadSelector,
)
from models.role import RoleName
from render.names import ENTRY_LABEL, GROUP_LABEL, NAME_LABEL, ROLE_LABEL, metadata, model_route_name


def model_server(deployment: Deployment, serving: str) -> ModelServer:
    """The pods that serve, in pairs of prefill and decode of one group; ``serving`` is the name of their ModelServing."""
    return ModelServer(
        metadata=metadata(deployment, serving),
        spec=ModelServerSpec(
            inference_engine="vLLM",
            model=deployment.model.served,
            workload_selector=WorkloadSelector(
                match_labels={NAME_LABEL: serving, **_ENTRY},
                pd_group=PDGroup(
                    group_key=GROUP_LABEL, prefill_labels=_role_labels("prefill"), decode_labels=_role_labels("decode")
                ),
            ),
            workload_port=WorkloadPort(port=deployment.port, protocol="http"),
            kv_connector=_KV_CONNECTOR,
            traffic_policy=deployment.traffic,
        ),
    )


# The router asks prefill first and takes its kv_transfer_params to decode, as every connector of vLLM-Ascend that can be declared
# wants it.
_KV_CONNECTOR = KVConnector(type="mooncake")
# Workers have the role's label too, and no API to send a request to.
_ENTRY = {ENTRY_LABEL: "true"}


def _role_labels(role: RoleName) -> dict[str, str]:
    return {ROLE_LABEL: role, **_ENTRY}


def model_route(deployment: Deployment, servers: Mapping[str, Mapping[str, int]]) -> ModelRoute | None:
    """From the names that clients ask for to ModelServers; None where other deployments' routes lead here.

    Args:
        deployment: whose route it is
        servers: deployment -> its ModelServers -> percent of its requests; one that is missing has one of its own name
    """
    route, model = deployment.route, deployment.model
    if not route.enabled:
        return None
    return ModelRoute(
        metadata=metadata(deployment, model_route_name(model.served)),
        spec=ModelRouteSpec(
            model_name=model.served,
            lora_adapters=tuple(model.lora.adapters) if model.lora else None,
            parent_refs=route.parent_refs or None,
            rules=tuple(
                RouteRule(
                    name=rule.name,
                    model_match=rule.match,
                    target_models=_targets(rule.targets, servers),
                )
                for rule in route.rules
            )
            or (RouteRule(name="default", target_models=_targets({deployment.name: _MOST}, servers)),),
            rate_limit=route.rate_limit,
        ),
    )


_MOST = 100
"""Kthena's largest weight"""


def _targets(weights: Mapping[str, int], servers: Mapping[str, Mapping[str, int]]) -> tuple[TargetModel, ...]:
    """ModelServers of the deployments, in whole numbers: exact where Kthena's largest weight allows it, else the nearest."""
    shares = {
        server: Fraction(weight * percent, 100)
        for name, weight in weights.items()
        for server, percent in servers.get(name, {name: 100}).items()
    }
    scale = _scale([share for share in shares.values() if share])
    # what is to get requests gets some
    return tuple(
        TargetModel(model_server_name=server, weight=max(round(share * scale), 1) if share else 0)
        for server, share in shares.items()
    )


def _scale(shares: Collection[Fraction]) -> Fraction:
    """What makes whole numbers of ``shares``, of about their size; or else Kthena's largest weight of the largest."""
    if not shares:
        return Fraction(1)
    divisor = gcd(*(share.numerator for share in shares))
    smallest = Fraction(lcm(*(share.denominator for share in shares)), divisor)
    times = min(divisor, _MOST // (max(shares) * smallest))
    return smallest * times if times else _MOST / max(shares)
