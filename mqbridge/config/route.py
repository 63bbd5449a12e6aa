"""The configuration of routes: from where to where, with which promises."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from mqbridge.adapter import Start
from mqbridge.config.parts import Name, OneOrMore, Part, SourceTopic, TargetTopic, wrong
from mqbridge.config.rules import EditRules, FilterRules, PartitionRule
from mqbridge.config.units import Duration, Size

MIN_IN_FLIGHT_BYTES = 64 << 10
"""Below this a route would wait for a round trip after nearly every batch."""

MIN_REFRESH_S = 0.1
"""Each look asks both clusters about every topic of the route."""

MAX_HOPS = 8
"""Longer ways than this were not met; a loop that only this limit ends writes a message that many times."""


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
        default=frozenset(),
        description="Take only messages of these types (TubeMQ's `$msgType$`, RocketMQ's tag), filtered at the server where "
        "it can do that; empty takes all. `filter` can say more.",
    )
    refresh: Duration | None = Field(
        default=60.0,
        ge=MIN_REFRESH_S,
        description="How often to look for new topics behind patterns, which restart the route with them, and for partitions "
        "that the source gained, for which targets with `create` are grown; null never looks.",
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
            raise wrong("topic", "needs either `topic` or `topics`, and not both")
        return self


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
        default=True,
        description="Create a missing target topic with as many partitions as its source topic has; grow it when that has more.",
    )
    edit: EditRules | None = Field(default=None, description="What is changed in messages on their way to this target.")
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
        "without them, which is logged and counted (`mqbridge_skipped_gaps_total`). What happened while the gateway was down is "
        "noticed by `state`, or where the group's own position shows it. A source that went back (a topic made anew, a disk "
        "restored) stops the partition in any case, until the group's position is set anew (`mqbridge offsets --reset`).",
    )
    stamp_origin: bool = Field(
        default=True, description="Write `mqbridge.origin` (cluster, topic, partition, position) on every message."
    )
    prevent_loops: bool | None = Field(
        default=None,
        description="Do not write a message to the cluster and topic that its origin names, nor one that passed through "
        "`max_hops` gateways: it is acknowledged, and counted as looped. Null is the value of `stamp_origin`. Turn it off to put "
        "dead letters back where they came from.",
    )
    max_hops: int = Field(default=MAX_HOPS, ge=1, description="How many gateways a message may pass through.")
    rate: float | None = Field(default=None, gt=0, description="Most messages per second, all lanes together; null is no limit.")
    rate_bytes: Size | None = Field(
        default=None, gt=0, description="Most bytes per second, all lanes together; null is no limit."
    )

    @property
    def loops_prevented(self) -> bool:
        """`prevent_loops`, or what holds where it is not given."""
        return self.stamp_origin if self.prevent_loops is None else self.prevent_loops


class Route(Part):
    """From one cluster to one or more others."""

    name: Name = Field(description="The route's name in metrics, logs and checkpoints; unique.")
    source: Source = Field(alias="from", description="Where the messages come from.")
    filter: FilterRules = Field(default=FilterRules(), description="Which of them the route takes.")
    targets: Annotated[tuple[Target, ...], OneOrMore] = Field(
        alias="to", min_length=1, description="Where the messages go: one target or a list, each of which must store them."
    )
    delivery: Delivery = Field(default=Delivery(), description="What the route promises, and within which limits.")

    @property
    def clusters(self) -> frozenset[str]:
        """The names of all clusters that the route uses."""
        letters = self.delivery.dead_letter
        names = {self.source.cluster, *(target.cluster for target in self.targets)}
        return frozenset(names if letters is None else names | {letters.cluster})

    @model_validator(mode="after")
    def _order_can_be_kept(self) -> Self:
        if self.delivery.order == "partition" and any(target.partitions.by == "round_robin" for target in self.targets):
            raise wrong(
                "order",
                "order by partition cannot be kept with `partitions.by: round_robin`",
                "Set delivery.order: none, or another rule",
            )
        return self
