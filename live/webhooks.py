"""Whether Kthena's admission webhooks answer the API server."""

from __future__ import annotations

import asyncio

from live import paths
from live.api import FORBIDDEN, Api, ApiRefusedError, Object

ANSWER_SECONDS = 10.0
"""less than the half minute for which the API server would wait"""

_NAME = "kthena-pd-probe"
_TARGET = {"targetRef": {"kind": "ModelServing", "name": _NAME}}
_SPECS: dict[paths.Kind, Object] = {
    paths.model_servings: {
        "replicas": 0,
        "template": {
            "roles": [
                {
                    "name": "probe",
                    "replicas": 1,
                    "workerReplicas": 0,
                    "entryTemplate": {"spec": {"containers": [{"name": "probe", "image": "probe"}]}},
                }
            ]
        },
    },
    paths.model_servers: {
        "inferenceEngine": "vLLM",
        "workloadPort": {"port": 1},
        "workloadSelector": {"matchLabels": {"app.kubernetes.io/name": _NAME}},
    },
    paths.model_routes: {"modelName": _NAME, "rules": [{"name": "probe", "targetModels": [{"modelServerName": _NAME}]}]},
    paths.autoscaling_policies: {
        "metrics": [{"name": "probe", "targetValue": "1"}],
        "homogeneousTarget": {"target": _TARGET, "minReplicas": 1, "maxReplicas": 1},
    },
}
"""of one harmless object of each kind"""
_UNANSWERED = "failed calling webhook"


async def unanswered(api: Api, namespace: str) -> dict[str, str]:
    """Kind -> why the API server takes no object of it; none where all webhooks answer, whatever their answer is.

    Objects are created in dry runs: webhooks without side effects are called all the same. Where we may not create, nothing can
    be said, and then nothing is.

    Raises:
        ClusterError: the cluster does not answer, or does not know a kind.
    """

    async def ask(kind: paths.Kind, spec: Object) -> str:
        probe = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": _NAME, "namespace": namespace}}
        try:
            await asyncio.wait_for(api.create(kind(namespace), {**probe, "spec": spec}, dry_run=True), ANSWER_SECONDS)
        except TimeoutError:
            return f"its webhook does not answer within {ANSWER_SECONDS:.0f} s"
        except ApiRefusedError as error:
            return error.message if is_unanswered(error) else ""
        return ""

    said = await asyncio.gather(*(ask(kind, spec) for kind, spec in _SPECS.items()))
    return {kind.kind: message for kind, message in zip(_SPECS, said, strict=True) if message}


def is_unanswered(error: ApiRefusedError) -> bool:
    """Whether it is no refusal: the API server could not ask the webhook that would have judged."""
    return error.code != FORBIDDEN and _UNANSWERED in error.message
