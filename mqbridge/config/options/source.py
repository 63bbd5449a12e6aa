"""Options of a route's source."""

from typing import Self

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from mqbridge.adapter.inbound import Start
from mqbridge.config.base import Name, Options, option_error
from mqbridge.config.patterns import NameOrPattern
from mqbridge.config.units import Duration

MIN_REFRESH_S = 0.1
"""Minimum of `refresh`. Each check asks the route's clusters for the partitions of every topic."""


class Source(Options):
    """The source of a route."""

    cluster: Name = Field(description="The cluster to consume from.")
    topic: NameOrPattern | None = Field(
        default=None,
        description="The topic: an exact name, or `~PATTERN`, a Python regular expression that must match a whole name. "
        "The target's topic may use its named groups. A pattern does not select topics that the route itself writes, its "
        "dead-letter topic included. Give either `topic` or `topics`.",
        examples=["orders", "~orders_(?P<region>.+)"],
    )
    topics: tuple[NameOrPattern, ...] = Field(
        default=(), description="Several topics, each a name or a `~PATTERN`. Give either `topic` or `topics`."
    )
    group: Name = Field(description="The consumer group (on Pulsar the subscription). Gateways of the same group share the work.")
    start: Start = Field(
        default=Start.EARLIEST,
        description="The position at which a group without a committed position begins. Partitions that appear later are "
        "read from their first message, or from what was stored since the start.",
    )
    msg_types: frozenset[Name] = Field(
        default=frozenset(),
        description="Select only messages of these types (TubeMQ's `$msgType$`, RocketMQ's tag). The server filters them if it "
        "can. An empty list selects all. The route's option `filter` has more conditions.",
    )
    refresh: Duration | None = Field(
        default=60.0,
        ge=MIN_REFRESH_S,
        description="Interval of checks for new topics and new source partitions. If new topics match the patterns, the route is "
        "reopened with them. If a topic has new partitions, the gateway adds partitions to the targets that have the option "
        "`create`. Null disables the checks.",
    )
    options: SerializeAsAny[BaseModel] | None = Field(
        default=None, description="The system's own settings for consuming; see the inbound options below."
    )

    @property
    def configured_topics(self) -> tuple[str, ...]:
        """The names and patterns as written in the configuration, from `topic` or from `topics`."""
        return self.topics if self.topic is None else (self.topic,)

    @model_validator(mode="after")
    def _check_topic_or_topics(self) -> Self:
        if (self.topic is None) == (not self.topics):
            raise option_error("topic", "needs exactly one of `topic` and `topics`")
        return self
