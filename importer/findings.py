"""What the importer has to say about given manifests: faults, what changes, what is left out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from importer.manifests import Place
from rules.finding import Finding

CODES: dict[str, str] = {
    "IM000": "a file is a Kubernetes manifest",
    "IM001": "a kind that a stack file has",
    "IM002": "a field of Kthena v1.0.0",
    "IM003": "a deployment of prefill and decode engines that this program can declare",
    "IM004": "the script that starts the engine is given",
    "IM005": "a statement of a start script that is understood",
    "IM006": "a value that can be declared",
    "IM007": "a figure that stands once",
    "IM008": "values of the cluster are certain",
    "IM101": "each engine has an engine id of its own",
    "IM102": "the KV configuration says what the engine really has",
    "IM103": "roles of the KV transfer follow from the role",
    "IM104": "one port of the side channel for both roles",
    "IM105": "keys that the connector reads",
    "IM106": "a pod asks for the NPUs that its ranks use",
    "IM107": "one name of the model from the client to the engine",
    "IM108": "the router hands over as the engines' connector wants it",
    "IM109": "the router finds the pods that serve, and no others",
    "IM110": "engines are probed while they load, serve and hang",
    "IM111": "shared memory has a size",
    "IM112": "images are pinned",
    "IM113": "Kthena's own labels are left to it",
    "IM114": "files of the node's driver are mounted",
    "IM115": "an engine that stops ends its requests",
    "IM116": "start scripts know no server",
    "IM117": "graph sizes follow from the batch",
    "IM118": "ports that are in use are declared",
    "IM119": "the runtime sidecar reaches its engine",
    "IM120": "defaults are written out",
    "IM121": "an edited script reaches the pods",
    "IM122": "every engine's data-parallel ranks are laid out",
    "IM123": "no secret stands in plain",
    "IM201": "names of objects stay",
    "IM202": "nobody else writes the objects",
    "IM900": "what is rendered is what was given",
}
"""Codes that only the import has -> what holds where there is no finding; the rest are rules' (docs/rules.md)"""

_SECRET_NAME = re.compile(r"(TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS?|ACCESS_KEY|API_KEY)$", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@")
"""a password in a URL"""


def is_secret(name: str, value: object) -> bool:
    """Whether a variable or a flag is something that nobody wants in a stack file, nor on a screen."""
    return bool(value) and bool(_SECRET_NAME.search(name.replace("-", "_")) or _SECRET_VALUE.search(str(value)))


Weight = Literal["error", "warning"]


@dataclass
class Findings:
    """Collected, each once."""

    found: dict[Finding, None] = field(default_factory=dict)

    def add(self, code: str, place: Place, problem: str, remedy: str, severity: Weight = "warning") -> None:
        """Something at a place of a manifest."""
        finding = Finding(code, (), " ".join(problem.split()), remedy, severity, place.file, place.line, 1)
        self.found[finding] = None
