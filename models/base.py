"""The base of every declared type."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


class Declaration(BaseModel):
    """A frozen type with Kubernetes' camelCase keys in YAML; an unknown key is an error.

    Annotations in this room are evaluated by Python and not postponed: pydantic would compile each of them at import.
    Defaults that are declarations themselves are made by ``model_construct``: a validated one would build its type's validator
    at import, only for it to be built again as a part of the whole.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        defer_build=True,  # only what is used is built: a fifth of the time that `pd check` takes
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        validate_default=True,
    )


class OneOf(Declaration):
    """A choice: exactly one of the fields is given."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        fields = type(self).model_fields
        if sum(getattr(self, name) is not None for name in fields) != 1:
            raise ValueError(f"not exactly one; give one of {', '.join(field.alias or name for name, field in fields.items())}")
        return self


def dump(declared: Declaration) -> dict[str, Any]:
    """``declared`` as plain dicts with camelCase keys, absent fields left out.

    The one way from a model to what Kubernetes and Pulumi take: pydantic objects do not serialise there, and an empty map in
    metadata would be a difference at every ``pulumi up``.
    """
    return declared.model_dump(by_alias=True, exclude_none=True, mode="json")
