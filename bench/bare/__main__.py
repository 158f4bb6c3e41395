"""The program to compare with: the same objects as plain dicts, straight to Pulumi's Kubernetes provider."""

import json
from pathlib import Path

import pulumi
from pulumi_kubernetes import Provider
from pulumi_kubernetes.apiextensions import CustomResource
from pulumi_kubernetes.core.v1 import ConfigMap

config = pulumi.Config()
provider = Provider("kubernetes", context=config.require("context"), cluster_identifier="bare")
previous: list[pulumi.Resource] = []
for rendered in json.loads(Path(config.require("objects")).read_text()):
    options = pulumi.ResourceOptions(provider=provider, depends_on=previous)
    name, kind = rendered["metadata"]["name"], rendered["kind"]
    if kind == "ConfigMap":
        resource: pulumi.Resource = ConfigMap(
            "scripts", metadata=rendered["metadata"], data=rendered["data"], immutable=True, opts=options
        )
    else:
        resource = CustomResource(
            f"{kind}-{name}",
            api_version=rendered["apiVersion"],
            kind=kind,
            metadata=rendered["metadata"],
            spec=rendered["spec"],
            opts=options,
        )
    previous = [resource]
