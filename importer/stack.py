"""Given manifests in; a stack file, and what is to be said about them, out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import catalog
from importer.comparison import Difference, differences, policy_facts, route_facts, server_facts, serving_facts
from importer.declare import BOTH, OF_ROLE, Declaring, Draft, Given, RoleGiven, families, plugins_of
from importer.engine import ConfigMaps, Facts, Pod, families_of, read_pod
from importer.explanations import Context, explain, shown
from importer.findings import Findings
from importer.forms import has_form, known_fields
from importer.manifests import Keys, Manifest, Place
from importer.routes import bound_policy, declare_route, declare_scaling, declare_server, old_serving, selects, targets_of
from importer.shell import Missing
from models.deployment import Deployment
from models.role import ROLES, RoleName
from models.stack import Stack
from render import RenderedDeployment, render_deployment
from render.deployment import serving_name, template_of
from render.names import DEPLOYMENT_LABEL, MANAGED_LABEL, QUEUE_ANNOTATION
from rules import check
from rules.finding import Finding, Path, in_order
from rules.shape import SHAPE, parse

SCHEDULERS = ("volcano", "default-scheduler")
_DERIVED: tuple[Path, ...] = (("engine", "image"), ("model", "blockSize"), ("model", "weights"), ("autoscaling",), ("route",))
"""What may be left out because it is derived, not only because it is a default"""
_DROPPED = "PD202"
"""Rule about settings without an effect: they are left out"""
_OURS = (DEPLOYMENT_LABEL, MANAGED_LABEL, QUEUE_ANNOTATION)
_OF_OURS = ("pulumi.com/", "kthena-pd/")
_ARGO, _FLUX = (
    ("Argo CD", "take it out of its application, without pruning"),
    ("Flux", "take it out of its source, without pruning"),
)
_WRITERS = {
    "meta.helm.sh/release-name": ("Helm", "annotate it with helm.sh/resource-policy=keep before you uninstall the release"),
    "argocd.argoproj.io/instance": _ARGO,
    "argocd.argoproj.io/tracking-id": _ARGO,
    "kustomize.toolkit.fluxcd.io/name": _FLUX,
    "helm.toolkit.fluxcd.io/name": _FLUX,
}
"""Label or annotation -> who has put it there and would undo or delete what the stack declares, and what to do"""
_ROLE_LABELS = {"prefill": ("prefill", "p"), "decode": ("decode", "d")}
_FACTS_OF: Mapping[Path, tuple[str, ...]] = {
    ("resources",): ("resources",),
    ("model", "served"): ("--served-model-name", "model"),
    ("model", "weights"): ("weights", "weights-from", "mount"),
}
"""Field that must be declared -> what in the keys of facts is of it; of flags importer.declare knows"""
_OF_IMAGE = re.compile(r"^/usr/local/Ascend/.*set_env\.(ba)?sh$|/\.(bashrc|bash_profile|profile)$|^/etc/(profile|bash\.?bashrc)")
"""Scripts of CANN and of the shell"""
_INSTEAD = {
    "ModelBooster": "it makes a ModelServing, ModelServer and ModelRoute: give these, as `kubectl get -o yaml` shows them",
    "ModelInfer": "the ModelServing of early releases: give it as `kubectl get modelserving -o yaml` shows it",
    "ExternalModelProvider": "a model outside of the cluster is not this program's",
    "InferencePool": "route.parentRefs leads a Gateway to the router",
    "HTTPRoute": "it stays as it is",
    "Gateway": "it stays as it is; route.parentRefs names it",
}


@dataclass(frozen=True)
class Object:
    """A given object beside what is rendered in its place."""

    given: Manifest
    deployment: str
    rendered: dict[str, Any]

    @property
    def keeps_its_name(self) -> bool:
        """Whether it is the same object for the API server."""
        one, other = self.given, self.rendered["metadata"]
        return (one.name, one.namespace) == (other["name"], other["namespace"])

    @property
    def has_same_pods(self) -> bool:
        """Of a ModelServing: whether its templates are the same, so that no pod is made anew."""
        one, other = (spec["template"]["roles"] for spec in (self.given.spec, self.rendered["spec"]))
        return [template_of(role) for role in one] == [template_of(role) for role in other]


@dataclass(frozen=True)
class Imported:
    """What came of the manifests."""

    config: dict[str, Any]
    """cluster and deployments, as a stack file has them"""
    findings: tuple[Finding, ...]
    """about the manifests, each with its place there"""
    of_stack: tuple[Finding, ...]
    """what the rules say of the new stack, with the places of the manifests where they are known"""
    objects: tuple[Object, ...]
    unexplained: tuple[Difference, ...]
    """differences that no finding stands for: none, or a fault of this room"""
    compared: int
    """facts on either side"""


def import_manifests(manifests: Sequence[Manifest], *, npu: str | None = None, device_plugin: str | None = None) -> Imported:
    """Make a stack of objects.

    Args:
        manifests: of one cluster; those that belong to no P/D deployment are named in the findings
        npu: family, where the manifests don't tell
        device_plugin: which device plugin the cluster has, likewise
    """
    return _Import(manifests, npu, device_plugin).run()


class _Import:
    def __init__(self, manifests: Sequence[Manifest], npu: str | None, device_plugin: str | None) -> None:
        self.npu, self.device_plugin, self.findings = npu, device_plugin, Findings()
        self.by_kind: dict[str, list[Manifest]] = {}
        manifests = [manifest for manifest in self._once(manifests) if has_form(manifest, self.findings)]
        for manifest in manifests:
            self.by_kind.setdefault(manifest.kind, []).append(manifest)
        config_maps = {(one.namespace, one.name): one for one in self.by_kind.get("ConfigMap", [])}
        # one without a namespace goes wherever the rest goes
        anywhere = {one.name: one for one in self.by_kind.get("ConfigMap", []) if "namespace" not in one.metadata}
        namespaces = {one.namespace for one in manifests}
        self.config_maps = ConfigMaps(
            {(space, name): one for name, one in anywhere.items() for space in namespaces} | config_maps
        )
        self.given: dict[str, Given] = {}
        self.drafts: dict[str, Draft] = {}
        self.servers: dict[str, Manifest] = {}
        """deployment -> its ModelServer"""
        self.routes: dict[str, Manifest] = {}
        self.policies: dict[str, Manifest] = {}

    def _once(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """Each object once, also where a file and a dump of the cluster have it."""
        first: dict[str, Manifest] = {}
        for manifest in manifests:
            known = first.setdefault(str(manifest), manifest)
            if known.body != manifest.body:
                what = f"{manifest} stands in {known.place()} too, and differs: this one is not looked at"
                self.findings.add("IM000", manifest.place(), what, "give the one that holds", "error")
        return list(first.values())

    def run(self) -> Imported:
        """Everything."""
        for manifest in self.by_kind.get("ModelServing", []):
            given = self._given(known_fields(old_serving(manifest, self.findings), self.findings))
            if given and given.name in self.given:
                what = f"{manifest}: deployment {given.name} is that of {self.given[given.name].manifest} already"
                self._refuse(manifest.place("metadata", "name"), what, "a stack for each namespace")
            elif given:
                self.given[given.name] = given
        cluster = self._cluster()
        for name, given in self.given.items():
            self.drafts[name] = Declaring(given, cluster["npu"]["family"], self.findings).declare()
        self._route()
        self._scale()
        self._other_kinds()
        for manifest in self._taken():
            self._metadata(manifest)
        self._share_node_selector(cluster)
        return self._finished(cluster)

    # which there are

    def _given(self, manifest: Manifest) -> Given | None:
        roles = (manifest.spec.get("template") or {}).get("roles") or ()
        read: dict[RoleName, RoleGiven] = {}
        empty: list[str] = []
        for index, body in enumerate(roles):
            keys = ("spec", "template", "roles", index, "entryTemplate")
            if not ((body.get("entryTemplate") or {}).get("spec") or {}).get("containers"):
                empty.append(str(body.get("name")))
                continue
            entry = read_pod(manifest, keys, self.config_maps)
            workers = body.get("workerReplicas", 0) and ((body.get("workerTemplate") or {}).get("spec") or {}).get("containers")
            worker = read_pod(manifest, (*keys[:-1], "workerTemplate"), self.config_maps) if workers else None
            if role := _role(str(body.get("name")), entry):
                read[role] = RoleGiven(str(body.get("name")), index, body, entry, worker)
        if wrong := _wrong_roles([str(body.get("name")) for body in roles], [one.name for one in read.values()], empty):
            self._refuse(manifest.place("spec", "template", "roles"), f"{manifest}: {wrong}", "one of prefill and one of decode")
            return None
        if not all(one.entry.options or self._has_missing(one.entry) for one in read.values()):
            engines = {str(one.entry.value("image")) for one in read.values()}
            what, remedy = (
                f"{', '.join(sorted(engines))} is started without `vllm serve`",
                "vLLM-Ascend engines; the rest stays as it is",
            )
            if any("vllm" in text for one in read.values() if one.entry.run for text, _, _ in one.entry.run.unknown):
                what = "`vllm serve` stands inside of an if, a case, a loop or a function, which are not followed"
                remedy = "give scripts that start it outside of them, one for each role"
            self._refuse(manifest.place(), f"{manifest}: {what}", remedy)
            return None
        if not all(one.entry.value("npus") for one in read.values()):
            asked = "nvidia.com/gpu" if "nvidia" in str(manifest.body) else "no huawei.com resource"
            self._refuse(
                manifest.place(), f"{manifest}: its engines ask for {asked}", "engines on Ascend NPUs; the rest stays as it is"
            )
            return None
        return Given(manifest, {role: read[role] for role in ROLES})

    def _has_missing(self, pod: Pod) -> bool:
        return bool(pod.run and any(not _is_of_image(one.path) for one in pod.run.missing))

    def _refuse(self, place: Place, problem: str, remedy: str) -> None:
        self.findings.add("IM003", place, f"{problem}: not taken over", remedy, "error")

    def _check_start(self, given: Given, rendered: RenderedDeployment | None) -> None:
        """How the engines are started, as far as it was followed; a script that is rendered just so is known."""
        scripts = rendered.stable.scripts.values() if rendered else ()
        known = {text for config_map in scripts for text in config_map["data"].values()}
        for role, one in given.roles.items():
            for kind, pod in ((role, one.entry), (f"{role} worker", one.worker)):
                if pod is None or pod.run is None:
                    continue
                for missing in pod.run.missing:
                    self._tell_missing(missing, kind, pod)
                for text, offset, file in pod.run.unknown:
                    if pod.texts.get(file) in known:
                        continue
                    what = f"`{shown(' '.join(text.split()))}` of the {kind} script is not taken over"
                    remedy = "what the engine needs of it: env, extraArgs or an image of your own"
                    self.findings.add("IM005", _place_in(pod, file, offset), what, remedy)
                first = next((pod.scripts[path] for path, text in pod.texts.items() if text not in known), None)
                if first:
                    what = "an edit of this script reaches no pod: the ModelServing that mounts it stays as it was"
                    remedy = "scripts get names of their content: an edit rolls the pods"
                    self.findings.add("IM121", first, what, remedy)

    def _tell_missing(self, missing: Missing, kind: str, pod: Pod) -> None:
        """A script that is not given starts the engine only where nothing else does."""
        place = _place_in(pod, missing.file, missing.offset)
        if pod.run and pod.run.engine is None and not _is_of_image(missing.path):
            remedy = "give the ConfigMap that has it, or the text of a script that is in the image"
            what = f"{kind} is started by {missing.path}, which is in none of the files"
            self.findings.add("IM004", place, what, remedy, "error")
            return
        done = "sourced" if missing.sourced else "run"
        remedy = "give the ConfigMap that has it, or declare what the engine needs of it: env, or an image of your own"
        if _is_of_image(missing.path):
            remedy = "vLLM-Ascend's image has the variables of its own toolkit; others that the engine needs: env"
        what = f"{missing.path}, {done} before the engine of {kind}, is in none of the files: not taken over"
        self.findings.add("IM005", place, what, remedy)

    # the cluster

    def _cluster(self) -> dict[str, Any]:
        family = self.npu
        for given in self.given.values():
            fitting = families(given)
            if family is None and fitting:
                family = fitting[0]
                certain = len(fitting) == 1 or any(
                    family in families_of(str(role.entry.value("image"))) for role in given.roles.values()
                )
                if not certain:
                    self.findings.add(
                        "IM008",
                        given.manifest.place(),
                        f"resources and image fit {', '.join(fitting)}; taken for {family}",
                        f"--npu {fitting[1]}, if that is what the servers are",
                    )
        family = family or next(iter(catalog.npu_families()))
        npu: dict[str, Any] = {"family": family}
        resources = {str(role.entry.value("npu-resource")) for given in self.given.values() for role in given.roles.values()}
        plugins = plugins_of(family, resources)
        npu["devicePlugin"] = self.device_plugin or next(iter(plugins), "cce")
        if chip := plugins.get(npu["devicePlugin"]):
            npu["chip"] = chip
        cluster = {"npu": npu, "scheduler": "volcano", "controlPlane": {"install": False}}
        declared = {str(given.manifest.spec.get("schedulerName") or "volcano"): given for given in self.given.values()}
        for scheduler, given in declared.items():
            place = given.manifest.place("spec", "schedulerName")
            if scheduler not in SCHEDULERS:
                self.findings.add(
                    "IM006", place, f"scheduler {scheduler} is not taken over", "volcano, or default-scheduler", "error"
                )
            elif len(declared) > 1 and scheduler != next(iter(declared)):
                self.findings.add(
                    "IM006", place, f"scheduler {scheduler}, another deployment has another", "a stack for each", "error"
                )
        if declared and (first := next(iter(declared))) in SCHEDULERS:
            cluster["scheduler"] = first
        return cluster

    def _share_node_selector(self, cluster: dict[str, Any]) -> None:
        """What all pods ask of their node is the cluster's."""
        patches = [(draft.get(role, "podTemplate", "spec") or {}) for draft in self.drafts.values() for role in ROLES]
        selectors = [patch.get("nodeSelector") for patch in patches]
        if selectors and selectors[0] and all(one == selectors[0] for one in selectors):
            cluster["npu"]["nodeSelector"] = selectors[0]
            for draft in self.drafts.values():
                for role in ROLES:
                    del draft.declared[role]["podTemplate"]["spec"]["nodeSelector"]
                    _without_empty(draft.declared[role], "podTemplate", "spec")

    # what leads to them

    def _route(self) -> None:
        servers: dict[tuple[str, str], str] = {}
        self._match_servers(servers)
        self._match_routes(servers)
        named = {name for draft in self.drafts.values() for rule in draft.get("route", "rules") or () for name in rule["targets"]}
        for name, draft in self.drafts.items():
            place = self.given[name].manifest.place()
            if name not in self.servers:
                self._missing("ModelServer", name, place)
            # what a router leads to already, without a route of its own, gets none
            if name not in self.routes and (name in named or name in self.servers):
                draft.set(("route", "enabled"), value=False, place=place)
            elif name not in self.routes:
                self._missing("ModelRoute", name, place)

    def _missing(self, kind: str, name: str, place: Place) -> None:
        what = f"no {kind} of {name} is given, and one is rendered"
        self.findings.add("IM109", place, what, f"give the {kind} that there is; without one, see that you want this")

    def _match_servers(self, servers: dict[tuple[str, str], str]) -> None:
        for server in self.by_kind.get("ModelServer", []):
            found = next((name for name, given in self.given.items() if selects(server, given)), None)
            if found is None:
                what = f"{server} selects the pods of none of the given deployments: not taken over"
                self.findings.add("IM109", server.place("spec", "workloadSelector"), what, "give its ModelServing too")
            elif found in self.servers:
                what = f"{server} is the second one of {found}: not taken over"
                self.findings.add("IM006", server.place(), what, "one ModelServer for each deployment")
                servers[server.namespace, server.name] = found
            else:
                self.servers[found] = server
                servers[server.namespace, server.name] = found
                known_fields(server, self.findings)
                declare_server(server, self.given[found], self.drafts[found], self.findings)

    def _match_routes(self, servers: Mapping[tuple[str, str], str]) -> None:
        for route in self.by_kind.get("ModelRoute", []):
            known = {name: found for (namespace, name), found in servers.items() if namespace == route.namespace}
            owner = declare_route(route, known, self.drafts, self.findings)
            if owner is None:
                what = f"{route} leads to none of the given deployments: not taken over"
                self.findings.add("IM006", route.place("spec"), what, "give ModelServer and ModelServing too")
            elif owner in self.routes:
                what = f"{route} is the second one of {owner}: not taken over"
                self.findings.add("IM006", route.place(), what, "a deployment has one route; its rules can have several targets")
            else:
                self.routes[owner] = known_fields(route, self.findings)

    def _scale(self) -> None:
        policies = {(one.namespace, one.name): one for one in self.by_kind.get("AutoscalingPolicy", [])}
        bindings = self.by_kind.get("AutoscalingPolicyBinding", [])
        bound = {(one.namespace, str((one.spec.get("policyRef") or {}).get("name"))) for one in bindings}
        effective = [one for place, one in policies.items() if place not in bound]
        effective += [one for binding in bindings if (one := bound_policy(binding, policies, self.findings))]
        for policy in effective:
            targets = targets_of(policy)
            found = next(
                (
                    name
                    for name, given in self.given.items()
                    if given.manifest.name in targets and given.manifest.namespace == policy.namespace
                ),
                None,
            )
            if "heterogeneousTarget" in policy.spec:
                what, remedy = f"{policy} scales several ModelServings by their cost", "autoscaling of each deployment"
                self.findings.add(
                    "IM006", policy.place("spec", "heterogeneousTarget"), f"{what}: not taken over", remedy, "error"
                )
            elif found is None:
                what = f"{policy} scales none of the given deployments: not taken over"
                self.findings.add("IM006", policy.place(), what, "give its ModelServing too")
            elif found in self.policies:
                what = f"{policy} is the second one of {found}: not taken over"
                self.findings.add("IM006", policy.place(), what, "two would scale the same pods: one AutoscalingPolicy", "error")
            else:
                self.policies[found] = known_fields(policy, self.findings)
                declare_scaling(policy, self.given[found], self.drafts[found], self.findings)

    def _taken(self) -> Iterator[Manifest]:
        yield from (given.manifest for given in self.given.values())
        for kind in (self.servers, self.routes, self.policies):
            yield from kind.values()

    def _metadata(self, manifest: Manifest) -> None:
        """Who else writes an object, and which labels and annotations it loses."""
        metadata = manifest.metadata
        for owner in metadata.get("ownerReferences") or ():
            who = f"{owner.get('kind')} {owner.get('name')}"
            remedy = f"delete {who} with --cascade=orphan once the object is adopted, and before `up`"
            self.findings.add(
                "IM202", manifest.place("metadata", "ownerReferences"), f"{who} writes and deletes {manifest}", remedy, "error"
            )
        for kind in ("labels", "annotations"):
            for key, value in (metadata.get(kind) or {}).items():
                place = manifest.place("metadata", kind, key)
                if key in _WRITERS:
                    who, remedy = _WRITERS[key]
                    self.findings.add("IM202", place, f"{who} writes and deletes {manifest}", remedy, "error")
                elif key not in _OURS and not key.startswith(_OF_OURS):
                    what = f"{kind[:-1]} {key}={value} of {manifest} is not taken over"
                    self.findings.add("IM006", place, what, "what selects by it must do without")

    def _other_kinds(self) -> None:
        taken = {"ModelServing", "ModelServer", "ModelRoute", "ConfigMap", "AutoscalingPolicy", "AutoscalingPolicyBinding"}
        for kind in sorted(self.by_kind.keys() - taken):
            for manifest in self.by_kind[kind]:
                what = f"{manifest} is not taken over"
                self.findings.add("IM001", manifest.place(), what, _INSTEAD.get(kind, "it stays as it is, beside the stack"))
        mounted = {str(keys) for keys in self._mounted()}
        for config_map in self.by_kind.get("ConfigMap", []):
            if config_map.name not in mounted:
                what = f"{config_map} is mounted by none of the given deployments: not taken over"
                self.findings.add("IM001", config_map.place(), what, "it stays as it is, beside the stack")

    def _mounted(self) -> Iterator[str]:
        for given in self.given.values():
            for role in given.roles.values():
                for pod in filter(None, (role.entry, role.worker)):
                    yield from (str((one.get("configMap") or {}).get("name")) for one in pod.spec.get("volumes") or ())

    # the result

    def _finished(self, cluster: dict[str, Any]) -> Imported:
        declared = {name: draft.declared for name, draft in self.drafts.items()}
        stack, malformed = parse({"cluster": cluster, "deployments": declared})
        if stack:
            self._leave_out_what_has_no_effect(stack, declared)
            stack, malformed = parse({"cluster": cluster, "deployments": declared})
        deployments = stack.deployments if stack else {}
        pruned = {
            name: _pruned(one, name, cluster, deployments[name]) if name in deployments else one for name, one in declared.items()
        }
        config = {"cluster": cluster, "deployments": pruned}
        after, malformed = parse(config)
        found = [*malformed, *(check(after) if after else [])] if declared else []
        objects: list[Object] = []
        unexplained: list[Difference] = []
        compared = 0
        missing = {(finding.path[1], finding.path[2:]) for finding in malformed if _is_missing(finding)}
        whole = parse(_completed(config, missing))[0] if missing else after
        deployments = whole.deployments if whole else {}
        names = {serving_name(one, whole.cluster): name for name, one in deployments.items()} if whole else {}
        for name, given in self.given.items():
            is_declared = after is not None and name in after.deployments
            rendered = render_deployment(deployments[name], whole.cluster, deployments) if whole and name in deployments else None
            self._check_start(given, rendered if is_declared else None)
            if rendered is None:
                continue
            objects += self._pairs(name, rendered) if is_declared else ()
            one, other = self._facts(name, None, {}), self._facts(name, rendered, names)
            compared += len(one.keys() | other.keys())
            around: dict[str, Place] = {role: given.entry.places["command"] for role, given in given.roles.items()}
            around |= {"serving": given.manifest.place()}
            paths = [path for of, path in missing if of == name]
            found_here = (one for one in differences(one, other, around) if not _stands_in(one.keys, paths))
            unexplained += explain(found_here, Context(one, other), self.findings)
        return Imported(
            config,
            tuple(in_order(self.findings.found)),
            tuple(in_order(self._placed(finding) for finding in found)),
            tuple(objects),
            tuple(unexplained),
            compared,
        )

    def _leave_out_what_has_no_effect(self, stack: Stack, declared: dict[str, dict[str, Any]]) -> None:
        for finding in check(stack):
            path = finding.path[2:]
            if finding.code != _DROPPED or finding.path[:1] != ("deployments",) or "env" not in path:
                continue
            draft = self.drafts[str(finding.path[1])]
            holder: Any = declared[draft.name]
            for key in path[:-1]:
                holder = holder[key]
            holder.pop(path[-1], None)
            place = draft.place(path) or Place("", 0)
            self.findings.add(_DROPPED, place, f"{path[-1]}: {finding.problem}", f"left out; {finding.remedy}")

    def _placed(self, finding: Finding) -> Finding:
        """A finding about the stack, with the place in the manifest from which its value is."""
        if finding.path[:1] != ("deployments",) or len(finding.path) < 2 or finding.path[1] not in self.drafts:  # noqa: PLR2004
            return finding
        draft = self.drafts[str(finding.path[1])]
        place = draft.place(finding.path[2:])
        remedy = finding.remedy
        if _is_missing(finding):  # a recipe would be another deployment
            remedy = remedy.partition("; or take a recipe")[0]
            given = self.given[draft.name]
            role = next((one for name, one in given.roles.items() if name in finding.path[2:3]), None)
            place = role.entry.places["command"] if role else given.manifest.place()
        if place is None:
            return finding
        return replace(finding, remedy=remedy, file=place.file, line=place.line, column=1)

    def _pairs(self, name: str, rendered: RenderedDeployment) -> Iterator[Object]:
        serving = rendered.stable
        given = {(one.namespace, one.name): one for one in self.by_kind.get("ConfigMap", [])}
        for config_map in serving.scripts.values():
            if found := given.get((config_map["metadata"]["namespace"], config_map["metadata"]["name"])):
                yield Object(found, name, config_map)
        yield Object(self.given[name].manifest, name, serving.model_serving)
        if server := self.servers.get(name):
            yield Object(server, name, serving.model_server)
        if (route := self.routes.get(name)) and rendered.model_route:
            yield Object(route, name, rendered.model_route)
        if (policy := self.policies.get(name)) and serving.autoscaling_policy:
            yield Object(policy, name, serving.autoscaling_policy)

    def _facts(self, name: str, rendered: RenderedDeployment | None, behind: Mapping[str, str]) -> Facts:
        """Of the given objects of a deployment, or of those that are rendered; ``behind``: ModelServer -> deployment."""
        if rendered is None:
            given, server, route, policy = (
                self.given[name],
                self.servers.get(name),
                self.routes.get(name),
                self.policies.get(name),
            )
            behind = {self.servers[one].name: one for one in self.servers}
        else:
            stable = rendered.stable
            given = read_rendered(stable.scripts.values(), stable.model_serving)
            server = _as_given(stable.model_server) if name in self.servers else None
            route = _as_given(rendered.model_route) if name in self.routes and rendered.model_route else None
            policy = _as_given(stable.autoscaling_policy) if name in self.policies and stable.autoscaling_policy else None
        facts = serving_facts(given)
        facts |= server_facts(server) if server else {}
        facts |= route_facts(route, behind) if route else {}
        facts |= policy_facts(policy) if policy else {}
        return facts


def read_rendered(scripts: Iterable[Mapping[str, Any]], model_serving: dict[str, Any]) -> Given:
    """A rendered ModelServing as if it had been given."""
    config_maps = [_as_given(dict(one)) for one in scripts]
    found = ConfigMaps({(one.namespace, one.name): one for one in config_maps})
    manifest = _as_given(model_serving)
    roles: dict[RoleName, RoleGiven] = {}
    for index, role in enumerate(ROLES):
        body = manifest.spec["template"]["roles"][index]
        keys = ("spec", "template", "roles", index)
        worker = read_pod(manifest, (*keys, "workerTemplate"), found) if body.get("workerTemplate") else None
        roles[role] = RoleGiven(role, index, body, read_pod(manifest, (*keys, "entryTemplate"), found), worker)
    return Given(manifest, roles)


def _as_given(body: dict[str, Any]) -> Manifest:
    return Manifest(body, "", {(): 0})


def _role(name: str, pod: Pod) -> RoleName | None:
    """By its name, or by what its KV transfer is for."""
    for role in ROLES:
        first, short = _ROLE_LABELS[role]
        if name.lower() in (first, short) or first in name.lower() or name.lower().startswith(f"{short}-"):
            return role
    produces = {"kv_producer": "prefill", "kv_consumer": "decode"}
    found: RoleName | None = produces.get(str(pod.value("kv", "kv_role")))  # type: ignore[assignment]  # one of ROLES
    return found


def _wrong_roles(given: Sequence[str], read: Sequence[str], empty: Sequence[str]) -> str:
    """What keeps the roles of a ModelServing from being one of prefill and one of decode; empty where nothing does."""
    if not given:
        return "it has no roles"
    if empty:
        return f"{' and '.join(empty)} without containers"
    if unread := [name for name in given if name not in read]:
        return f"{', '.join(unread)} is neither prefill nor decode, or one too many"
    return "" if len(given) == len(ROLES) else f"{', '.join(given)} is its only role"


def _is_of_image(path: str) -> bool:
    """Whether a script sets up a shell inside of the engine's image, and nothing of the user's."""
    return bool(_OF_IMAGE.search(path))


def _place_in(pod: Pod, file: str, offset: int) -> Place:
    """A line of a script, or the command of a pod whose script stands in it."""
    script = pod.scripts.get(file)
    return Place(script.file, script.line + offset) if script else pod.places["command"]


def _is_missing(finding: Finding) -> bool:
    return finding.code == SHAPE.code and finding.path[:1] == ("deployments",) and finding.problem == "is missing"


def _completed(config: dict[str, Any], missing: Iterable[tuple[str | int, Path]]) -> dict[str, Any]:
    """``config`` with something in the place of what a deployment lacks, so that the rest can be rendered and compared.

    What the other role has, or else a recipe. A release is not stood in for: too much follows from it.
    """
    completed = deepcopy(config)
    for name, path in missing:
        holder: Any = completed["deployments"][name]
        other = [("decode" if path[0] == "prefill" else "prefill", *path[1:])] if path[0] in ROLES else []
        sources = [(config["deployments"][name], one) for one in other] + [(catalog.recipe(catalog.recipe_names()[0]), path)]
        found = next((value for source, one in sources if (value := _at(source, one)) is not None), None)
        if found is None or path[0] == "engine":
            continue
        for key in path[:-1]:
            holder = holder.setdefault(key, {})
        holder[path[-1]] = deepcopy(found)
    return completed


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _stands_in(keys: Keys, missing: Iterable[Path]) -> bool:
    """Whether a fact is only there because something stands in for what is missing."""
    role, *rest = map(str, keys)
    for path in missing:
        of_role = path[0] not in ROLES or role.removesuffix("-worker") == path[0]
        inside = path[1:] if path[0] in ROLES else path
        flags = {flag for flag, field in (OF_ROLE if path[0] in ROLES else BOTH).items() if field[: len(inside)] == inside}
        if of_role and {*flags, *_FACTS_OF.get(inside, ())} & set(rest):
            return True
    return False


def _without_empty(holder: dict[str, Any], *keys: str) -> None:
    """Take out maps that are empty now, from the inside."""
    if len(keys) > 1 and isinstance(holder.get(keys[0]), dict):
        _without_empty(holder[keys[0]], *keys[1:])
    if holder.get(keys[0]) == {}:
        del holder[keys[0]]


def _pruned(declared: dict[str, Any], name: str, cluster: Mapping[str, Any], whole: Deployment) -> dict[str, Any]:
    """``declared`` without what is a default, and without what is derived."""
    accepted = [whole]
    """as it was declared, then as it was without what is derived"""

    def same(candidate: dict[str, Any], path: Path) -> bool:
        stack, _ = parse({"cluster": cluster, "deployments": {name: candidate}})
        if stack is None or name not in stack.deployments:
            return False
        one = stack.deployments[name]
        if one == accepted[-1]:
            return True
        if not any(path[: len(derived)] == derived or derived[: len(path)] == path for derived in _DERIVED):
            return False
        if render_deployment(one, stack.cluster).objects != render_deployment(accepted[-1], stack.cluster).objects:
            return False
        accepted.append(one)
        return True

    return _smaller(declared, (), declared, same)


def _smaller(
    part: dict[str, Any], path: Path, whole: dict[str, Any], same: Callable[[dict[str, Any], Path], bool]
) -> dict[str, Any]:
    """Leave out key by key, from the outside to the inside, what makes no difference."""
    for key in list(part):
        here = (*path, key)
        without = deepcopy(whole)
        holder: Any = without
        for above in path:
            holder = holder[above]
        del holder[key]
        if same(without, here):
            del part[key]
        elif isinstance(part[key], dict) and key not in ("env", "additionalConfig", "podTemplate", "adapters", "metrics"):
            _smaller(part[key], here, whole, same)
    return whole if not path else part
