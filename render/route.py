"""How requests find the pods: the ModelServer and the ModelRoute of a deployment."""

from __future__ import annotations

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


def model_server(deployment: Deployment) -> ModelServer:
    """The pods that serve, in pairs of prefill and decode of one group."""
    return ModelServer(
        metadata=metadata(deployment, deployment.name),
        spec=ModelServerSpec(
            inference_engine="vLLM",
            model=deployment.model.served,
            workload_selector=WorkloadSelector(
                match_labels={NAME_LABEL: deployment.name, **_ENTRY},
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


def model_route(deployment: Deployment) -> ModelRoute | None:
    """From the names that clients ask for to ModelServers; None where other deployments' routes lead here."""
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
                    target_models=tuple(
                        TargetModel(model_server_name=name, weight=weight) for name, weight in rule.targets.items()
                    ),
                )
                for rule in route.rules
            )
            or (RouteRule(name="default", target_models=(TargetModel(model_server_name=deployment.name),)),),
            rate_limit=route.rate_limit,
        ),
    )
