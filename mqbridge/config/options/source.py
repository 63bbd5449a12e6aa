"""Options of a route's source."""

from typing import Self

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from mqbridge.adapter.inbound import Start
from mqbridge.config.base import Name, Options, invalid
from mqbridge.config.patterns import NameOrPattern
from mqbridge.config.units import Duration

MIN_REFRESH_S = 0.1
"""Each check asks both clusters about every topic of the route."""


class Source(Options):
    """The source of a route."""

    cluster: Name = Field(description="The cluster to consume from.")
    topic: NameOrPattern | None = Field(
        default=None,
        description="The topic: an exact name, or `~PATTERN`, a Python regular expression that must match a whole name; "
        "its named groups may be used in the target's topic. Either this or `topics`.",
        examples=["orders", "~orders_(?P<region>.+)"],
    )
    topics: tuple[NameOrPattern, ...] = Field(
        default=(), description="Several topics, each a name or a `~PATTERN`. Either this or `topic`."
    )
    group: Name = Field(description="The consumer group (on Pulsar the subscription). Gateways of the same group share the work.")
    start: Start = Field(default=Start.EARLIEST, description="Where a group without a committed position begins.")
    msg_types: frozenset[Name] = Field(
        default=frozenset(),
        description="Select only messages of these types (TubeMQ's `$msgType$`, RocketMQ's tag), filtered at the server if "
        "it can do that; empty selects all. `filter` has more conditions.",
    )
    refresh: Duration | None = Field(
        default=60.0,
        ge=MIN_REFRESH_S,
        description="Interval of checks for new topics that match patterns, which reopen the route with them, and for new "
        "source partitions, for which targets with `create` are grown; null disables the checks.",
    )
    options: SerializeAsAny[BaseModel] | None = Field(
        default=None, description="The system's own settings for consuming; see the inbound options below."
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        """The topics as written, whichever of the two keys was used."""
        return self.topics if self.topic is None else (self.topic,)

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.topic is None) == (not self.topics):
            raise invalid("topic", "needs either `topic` or `topics`, and not both")
        return self
