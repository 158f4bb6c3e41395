"""networking.serving.volcano.sh/v1alpha1 ModelRoute."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.base import Declaration, OneOf
from models.kthena.meta import Metadata
from models.quantities import ADDRESS


class StringMatch(OneOf):
    """Exactly one of the three: of several the router looks at the first one only, and none of them matches everything."""

    exact: str | None = None
    prefix: str | None = None
    regex: Annotated[str | None, Field(description="Go's syntax (RE2), found anywhere in the text")] = None


class BodyMatch(Declaration):
    """Match on the request body."""

    model: str | None = None


class ModelMatch(Declaration):
    """Which requests a rule takes."""

    headers: dict[str, StringMatch] | None = None
    uri: StringMatch | None = None
    body: BodyMatch | None = None


class TargetModel(Declaration):
    """A ModelServer and its share of the requests."""

    model_server_name: Annotated[str, Field(min_length=1)]
    weight: Annotated[int, Field(ge=0, le=100)] | None = None


class RouteRule(Declaration):
    """One rule of a route."""

    name: str | None = None
    model_match: ModelMatch | None = None
    target_models: Annotated[tuple[TargetModel, ...], Field(min_length=1, max_length=16)]


class RedisAddress(Declaration):
    """Redis that several routers count in."""

    address: Annotated[str, Field(pattern=ADDRESS, description="host:port")]


class GlobalRateLimit(Declaration):
    """Rate limit shared by all routers."""

    redis: RedisAddress


class RateLimit(Declaration):
    """Token limits of a route."""

    input_tokens_per_unit: Annotated[int, Field(ge=1)] | None = None
    output_tokens_per_unit: Annotated[int, Field(ge=1)] | None = None
    unit: Literal["second", "minute", "hour", "day", "month"]
    global_: Annotated[GlobalRateLimit | None, Field(alias="global")] = None

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.input_tokens_per_unit is None and self.output_tokens_per_unit is None:
            raise ValueError("limits nothing; give inputTokensPerUnit or outputTokensPerUnit or both")
        return self


class ParentReference(Declaration):
    """Gateway that a route belongs to."""

    group: str | None = None
    kind: str | None = None
    name: str
    namespace: str | None = None
    section_name: str | None = None
    port: int | None = None


class ModelRouteSpec(Declaration):
    """Spec of a ModelRoute; ``model_name`` is immutable."""

    model_name: str | None = None
    lora_adapters: Annotated[tuple[str, ...], Field(max_length=10)] | None = None
    parent_refs: tuple[ParentReference, ...] | None = None
    rules: Annotated[tuple[RouteRule, ...], Field(min_length=1, max_length=16)]
    rate_limit: RateLimit | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_name and not self.lora_adapters:
            raise ValueError("a route needs modelName or loraAdapters")
        return self


class ModelRoute(Declaration):
    """The front: from the name that a client asks for to ModelServers."""

    api_version: Literal["networking.serving.volcano.sh/v1alpha1"] = "networking.serving.volcano.sh/v1alpha1"
    kind: Literal["ModelRoute"] = "ModelRoute"
    metadata: Metadata
    spec: ModelRouteSpec
