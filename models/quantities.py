"""Small value types shared by the declarations: names, ports, durations."""

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

LAST_PORT = 65535
Port = Annotated[int, Field(ge=1, le=LAST_PORT)]
ADDRESS = r"^[a-zA-Z0-9_.-]+:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
"""host:port"""

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def seconds(duration: str) -> float:
    """Seconds of a duration as Kubernetes writes it: ``300s``, ``150ms``, ``1h30m``.

    Raises:
        ValueError: not a duration. The API server takes such a string and Kthena's webhook then answers HTTP 500.
    """
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(f"{duration!r} is not a duration; write for example 300s, 150ms or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _duration(value: str) -> str:
    seconds(value)
    return value


def _positive(value: str) -> str:
    if seconds(value) <= 0:
        raise ValueError(f"{value!r} is no time; write for example 30m")
    return value


def _with_unit(value: object) -> object:
    if isinstance(value, int | float):
        raise ValueError(f"{value} has no unit; write {value}s, for example")
    return value


Duration = Annotated[str, BeforeValidator(_with_unit), AfterValidator(_duration)]
PositiveDuration = Annotated[str, BeforeValidator(_with_unit), AfterValidator(_positive)]

EnvName = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="name of an environment variable, as a shell takes it")
]

DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""RFC 1035 label: what Kthena wants of names that become part of pod and Service names"""
DNS_LABEL_LENGTH = 63
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""RFC 1123 subdomain"""
DnsLabel = Annotated[
    str,
    Field(
        pattern=DNS_LABEL,
        max_length=DNS_LABEL_LENGTH,
        description="a DNS label: lower-case letters, digits and dashes, beginning with a letter, at most 63 characters",
    ),
]
Namespace = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        max_length=DNS_LABEL_LENGTH,
        description="lower-case letters, digits and dashes, at most 63 characters",
    ),
]
ObjectName = Annotated[
    str,
    Field(
        pattern=OBJECT_NAME,
        max_length=253,
        description="name of a Kubernetes object: lower-case letters, digits, dashes and dots, at most 253 characters",
    ),
]

LabelKey = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        description="key of a label: letters, digits, dashes, underscores and dots, at most 63, after an optional domain/",
    ),
]
LabelValue = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
        description="value of a label: letters, digits, dashes, underscores and dots, at most 63",
    ),
]


def without_backsteps(path: str) -> str:
    """``path`` itself; Kubernetes mounts none with ``..`` in it.

    Raises:
        ValueError: it has one.
    """
    if ".." in path.split("/"):
        raise ValueError(f"{path!r} has '..' in it; write the path without it")
    return path


AbsolutePath = Annotated[
    str,
    Field(pattern=r"^/.*[^/]$", description="absolute path of a directory, without a slash at its end"),
    AfterValidator(without_backsteps),
]

IMAGE_REFERENCE = (
    r"^[a-z0-9]([a-zA-Z0-9_.:-]*[a-zA-Z0-9_])?(/[a-z0-9]([a-zA-Z0-9_.-]*[a-zA-Z0-9_])?)*"
    r"(:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
)
"""In ASCII: with all letters of Unicode it takes 80 ms to compile (measured)"""
ImageReference = Annotated[
    str,
    Field(
        pattern=IMAGE_REFERENCE,
        description="container image: repository, tag or digest or both",
    ),
]
"""Kthena takes any text without blanks, and the kubelet then fails to pull it"""


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Quantity = Annotated[
    str,
    BeforeValidator(_number_as_text),
    Field(
        pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
        description="a Kubernetes quantity, for example 500m, 64 or 700Gi",
        json_schema_extra={"type": ["string", "number"]},
    ),
]
"""As in Kubernetes a number may stand without quotes"""

_MULTIPLES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18} | {
    f"{letter}i": 2.0 ** (10 * (power + 1)) for power, letter in enumerate("KMGTPE")
}


def amount(quantity: str) -> float:
    """A resource quantity as a number: cores, bytes."""
    digits = quantity.rstrip("numkMGTPEKi")
    return float(digits) * _MULTIPLES[quantity[len(digits) :]]
