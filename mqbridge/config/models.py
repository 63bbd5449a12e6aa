"""The configuration's models: what may be written, in which unit, and what holds when it is not written.

Everything is frozen and unknown keys are refused. What belongs to a system (a cluster's body, the `options` of the two ends of a
route) is validated by that system's own models (`mqbridge.config.bodies`) before these see it: here it is a ready model already.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mqbridge.adapter import Start
from mqbridge.errors import ConfigError
from mqbridge.routing.topics import compile_pattern, is_pattern, template_fields
from mqbridge.units import Address, Duration, Size, split_address

MIN_IN_FLIGHT_BYTES = 64 << 10
"""Below this a route would wait for a round trip after nearly every batch."""


def _checked_by(check: Any) -> AfterValidator:
    def validate(value: str) -> str:
        try:
            check(value)
        except ConfigError as error:
            raise PydanticCustomError("topic", "{problem}", {"problem": error.problem, "hint": error.hint}) from error
        return value

    return AfterValidator(validate)


def _one_is_a_list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


Name = Annotated[str, StringConstraints(min_length=1)]
SourceTopic = Annotated[Name, _checked_by(lambda topic: is_pattern(topic) and compile_pattern(topic))]
TargetTopic = Annotated[Name, _checked_by(template_fields)]


class Part(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClusterConfig(Part):
    """A cluster: the system that it runs, and that system's own settings beside it."""

    system: Name = Field(description="The system that the cluster runs: the name of an installed adapter.")
    settings: SerializeAsAny[BaseModel] = Field(description="The other keys, as the adapter's model read them.")


class Source(Part):
    """Where a route's messages come from."""

    cluster: Name = Field(description="The cluster to consume from.")
    topic: SourceTopic | None = Field(
        default=None,
        description="The topic: an exact name, or `~PATTERN`, a Python regular expression that must match a whole name; "
        "its named groups may be used in the target's topic. Either this or `topics`.",
        examples=["orders", "~orders_(?P<region>.+)"],
    )
    topics: tuple[SourceTopic, ...] = Field(
        default=(), description="Several topics, each a name or a `~PATTERN`. Either this or `topic`."
    )
    group: Name = Field(description="The consumer group (on Pulsar the subscription). Gateways of the same group share the work.")
    start: Start = Field(default=Start.EARLIEST, description="Where a group begins that has no committed position yet.")
    msg_types: frozenset[Name] = Field(
        default=frozenset(), description="Take only messages of these types (TubeMQ's `$msgType$`); empty takes all."
    )
    options: SerializeAsAny[BaseModel] | None = Field(
        default=None, description="The system's own settings for consuming; see the inbound options below."
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        """The topics as they were written, whichever of the two keys was used."""
        return self.topics if self.topic is None else (self.topic,)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.topic is None) == (not self.topics):
            raise PydanticCustomError("topic", "needs either `topic` or `topics`, and not both")
        return self


class PartitionRule(Part):
    """Which target partition a message goes to."""

    by: Literal["identity", "key", "round_robin"] = Field(
        default="identity",
        description="`identity`: a source partition keeps to one target partition (its index, modulo their number); "
        "`key`: as the target's own producers place the message's key, without a key as by identity; "
        "`round_robin`: batch by batch in turn, which keeps no order.",
    )


class Target(Part):
    """Where a route's messages go."""

    cluster: Name = Field(description="The cluster to produce to.")
    topic: TargetTopic = Field(
        default="{topic}",
        description="The target topic: a template in which `{topic}` is the source topic and `{name}` a named group of the "
        "pattern that matched it.",
        examples=["orders-copy", "persistent://public/default/{topic}"],
    )
    partitions: PartitionRule = Field(default=PartitionRule(), description="Which target partition a message goes to.")
    create: bool = Field(
        default=True, description="Create a missing target topic, with as many partitions as its source topic has."
    )
    options: SerializeAsAny[BaseModel] | None = Field(
        default=None, description="The system's own settings for producing; see the outbound options below."
    )


class Retry(Part):
    """How long what may pass is tried again."""

    max_elapsed: Duration | None = Field(
        default=None, gt=0, description="Transient failures are retried this long, then the route stops; null is for ever."
    )


class DeadLetter(Part):
    """Where messages go that a target refuses."""

    cluster: Name = Field(description="The cluster of the dead-letter topic.")
    topic: Name = Field(description="The dead-letter topic: an exact name.")


class Delivery(Part):
    """What a route promises, and within which limits it works."""

    guarantee: Literal["at_least_once"] = Field(
        default="at_least_once",
        description="A source message is acknowledged only after every target, or the dead-letter topic, has stored it.",
    )
    order: Literal["partition", "none"] = Field(
        default="partition", description="`partition` keeps the order of each source partition; `none` lets targets reorder."
    )
    in_flight_bytes: Size = Field(
        default=32 << 20,
        ge=MIN_IN_FLIGHT_BYTES,
        description="Most bytes of the route that are read and not yet stored; bounds its memory and slows the source.",
    )
    retry: Retry = Field(default=Retry(), description="How long what may pass is tried again.")
    dead_letter: DeadLetter | None = Field(
        default=None, description="Where messages go that a target refuses; null stops the route at the first such message."
    )
    on_gap: Literal["stop", "continue"] = Field(
        default="stop",
        description="What a partition does whose source no longer holds messages that were never read: stop and say so, or go on "
        "without them. Noticed after a restart only with `state`.",
    )
    stamp_origin: bool = Field(
        default=True, description="Write `mqbridge.origin` (cluster, topic, partition, position) on every message."
    )
    rate: float | None = Field(default=None, gt=0, description="Most messages per second, all lanes together; null is no limit.")
    rate_bytes: Size | None = Field(
        default=None, gt=0, description="Most bytes per second, all lanes together; null is no limit."
    )


class Route(Part):
    """From one cluster to one or more others."""

    name: Name = Field(description="The route's name in metrics, logs and checkpoints; unique.")
    source: Source = Field(alias="from", description="Where the messages come from.")
    targets: Annotated[tuple[Target, ...], BeforeValidator(_one_is_a_list)] = Field(
        alias="to", min_length=1, description="Where the messages go: one target or a list, each of which must store them."
    )
    delivery: Delivery = Field(default=Delivery(), description="What the route promises, and within which limits.")

    @model_validator(mode="after")
    def _order_can_be_kept(self) -> Self:
        if self.delivery.order == "partition" and any(target.partitions.by == "round_robin" for target in self.targets):
            raise PydanticCustomError(
                "order",
                "order by partition cannot be kept with `partitions.by: round_robin`",
                {"hint": "Set delivery.order: none, or partitions.by: identity or key"},
            )
        return self


class Http(Part):
    """Metrics and health over HTTP."""

    enabled: bool = Field(default=True, description="Serve metrics and health at all.")
    listen: Address = Field(default="127.0.0.1:8098", description="Address to listen at, HOST:PORT; port 0 takes a free one.")

    @property
    def host(self) -> str:
        """The host part of `listen`."""
        return split_address(self.listen)[0]

    @property
    def port(self) -> int:
        """The port part of `listen`."""
        return split_address(self.listen)[1]


class Log(Part):
    """The gateway's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The least severe level written.")
    format: Literal["text", "json"] = Field(default="text", description="`text` for people, `json` one object per line.")


class Config(Part):
    """A whole configuration."""

    clusters: dict[Name, ClusterConfig] = Field(min_length=1, description="The clusters that the gateway is a client of.")
    routes: tuple[Route, ...] = Field(default=(), description="What goes from where to where.")
    state: Path | None = Field(
        default=None,
        description="The checkpoint database, a file that is made when missing; relative to the working directory. "
        "Without it a gap in a source cannot be noticed after a restart.",
    )
    http: Http = Field(default=Http(), description="Metrics and health over HTTP.")
    log: Log = Field(default=Log(), description="The gateway's own log.")
    shutdown_timeout: Duration = Field(
        default=30.0, gt=0, description="How long a stopping gateway waits for what is in flight; the rest is delivered again."
    )
