"""Qwen3-30B-A3B twice: as it has proven itself, and with smaller decode batches for a share of the requests.

Namespace, volume and token are resources of this program. The deployments take their names as Outputs, by ``placeholder``.
"""

import pulumi
from pulumi_kubernetes import Provider
from pulumi_kubernetes.core.v1 import Namespace, PersistentVolumeClaim, Secret

from components import KthenaControlPlane, KthenaControlPlaneArgs, PDDeployment, PDDeploymentArgs, placeholder
from models.cluster import Cluster, ControlPlane, Npu
from models.overrides import ModelOverrides
from models.stack import Stack
from rules import check, deployment

MODEL = "Qwen/Qwen3-30B-A3B"

config = pulumi.Config()
canary_percent = config.require_int("canaryPercent")

provider = Provider("kubernetes", context=config.require("context"), cluster_identifier=pulumi.get_stack())
own = pulumi.ResourceOptions(provider=provider)
namespace = Namespace("serving", opts=own)
weights = PersistentVolumeClaim(
    "weights",
    metadata={"namespace": namespace.metadata.name},
    spec={
        "access_modes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "200Gi"}},
        "storage_class_name": config.require("storageClass"),
    },
    opts=own,
)
token = Secret(
    "hugging-face",
    metadata={"namespace": namespace.metadata.name},
    string_data={"HF_AUTH_TOKEN": config.require_secret("huggingFaceToken")},
    opts=own,
)

# Kthena is on the cluster already.
cluster = Cluster(
    npu=Npu(family="A3", device_plugin="mindcluster", node_selector={"accelerator-type": "module-a3-16-super-pod"}),
    control_plane=ControlPlane(install=False),
)
where = placeholder(namespace.metadata.name)
model: ModelOverrides = {
    "served": "qwen3-30b",
    "weights": {
        "download": {
            "source": MODEL,
            "cache": {"claim": {"name": placeholder(weights.metadata.name), "path": "/weights/qwen3-30b"}},
            "credentials": placeholder(token.metadata.name),
        }
    },
}
canary = deployment(
    "qwen3-canary",
    recipe="qwen3-30b-a3b-a3",
    namespace=where,
    model=model,
    decode={"batching": {"max_num_seqs": 128, "max_num_batched_tokens": 128}},
    route={"enabled": False},
)
stable = deployment(
    "qwen3-stable",
    recipe="qwen3-30b-a3b-a3",
    namespace=where,
    model=model,
    ratio="2P1D",
    route={"rules": [{"targets": {"qwen3-stable": 100 - canary_percent, canary.name: canary_percent}}]},
)
# Mistakes of one deployment stop it by themselves; this is for warnings, and for what the two have between them.
for finding in check(Stack(cluster=cluster, deployments={one.name: one for one in (stable, canary)})):
    pulumi.log.warn(str(finding))

kthena = KthenaControlPlane("kthena", KthenaControlPlaneArgs(cluster), pulumi.ResourceOptions(providers=[provider]))
after_kthena = pulumi.ResourceOptions(providers=[provider], depends_on=[kthena])
canary_deployment = PDDeployment("qwen3-canary", PDDeploymentArgs(canary, cluster, kthena.router_url), after_kthena)
stable_deployment = PDDeployment(
    "qwen3-stable", PDDeploymentArgs(stable, cluster, kthena.router_url, targets=[canary_deployment]), after_kthena
)
pulumi.export("endpoint", stable_deployment.endpoint)
pulumi.export("namespace", stable_deployment.namespace)
pulumi.export("revisions", {"stable": stable_deployment.revision, "canary": canary_deployment.revision})
