"""Options of a route's delivery guarantees and limits."""

from typing import Literal

from pydantic import Field

from mqbridge.config.base import Name, Options
from mqbridge.config.options.create_rule import Create, CreateRule
from mqbridge.config.options.unread import Unread
from mqbridge.config.units import Duration, Size

MIN_IN_FLIGHT_BYTES = 64 << 10
"""Minimum of `in_flight_bytes`. With a smaller limit, a route would wait for a round trip after nearly every batch."""

DEFAULT_MAX_HOPS = 8
"""Default of `max_hops`. No known deployment chains more gateways; a loop that is ended only by this limit writes each message
this many times."""


class Retry(Options):
    """Limits of retries after transient failures."""

    max_elapsed: Duration | None = Field(
        default=None,
        gt=0,
        description="How long a message is retried after transient failures, before the route stops; null means forever.",
    )


class DeadLetter(Options):
    """The dead-letter topic, for messages that a target rejects."""

    cluster: Name = Field(description="The cluster of the dead-letter topic.")
    topic: Name = Field(description="The dead-letter topic: an exact name.")
    create: Create = Field(
        default=True,
        description="Create the topic, with one partition, if it is missing. `{partitions: N, subscriptions: [NAME]}` sets the "
        "number of partitions, and the subscriptions to create with the topic. `false`: the topic must exist.",
    )
    unread: Unread = "kept"

    @property
    def partitions(self) -> int:
        """The number of partitions to create."""
        return (self.create.partitions if isinstance(self.create, CreateRule) else None) or 1

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The subscriptions that are created with the topic."""
        return self.create.subscriptions if isinstance(self.create, CreateRule) else ()


class Delivery(Options):
    """Delivery guarantees and limits of a route."""

    guarantee: Literal["at_least_once"] = Field(
        default="at_least_once",
        description="A source message is acknowledged only after every target, or the dead-letter topic, has stored it.",
    )
    order: Literal["partition", "none"] = Field(
        default="partition",
        description="`partition` keeps the order of each source partition; with `none`, targets may reorder messages.",
    )
    in_flight_bytes: Size = Field(
        default=16 << 20,
        ge=MIN_IN_FLIGHT_BYTES,
        description="Maximum bytes that the route has read and not yet stored, in each gateway and in each task of a Spark "
        "mirror. It bounds the memory of the route; when it is reached, the source is not read further. One half is for reading "
        "ahead, over all partitions, and the other half for messages in flight to the targets.",
    )
    retry: Retry = Field(default=Retry(), description="How long transient failures are retried.")
    dead_letter: DeadLetter | None = Field(
        default=None, description="The topic for messages that a target rejects; null stops the route at the first such message."
    )
    on_gap: Literal["stop", "continue"] = Field(
        default="stop",
        description="The action for a partition whose source has deleted messages that were never read. `stop` stops the "
        "partition and reports it. `continue` skips the gap, logs it and counts it (`mqbridge_skipped_gaps_total`). Gaps that "
        "arose while the gateway was down are detected with the option `state`, or if the group's own position shows them. If "
        "it cannot be known whether deleted messages were read (after Pulsar's time to live or backlog eviction, for "
        "example), a WARNING is logged and counted (`mqbridge_possible_gaps_total`), and the partition is read. If the "
        "positions of a RocketMQ queue or of the embedded log went back (a topic that was deleted and created again, a "
        "restored disk), the partition always stops, until the group's position is reset (`mqbridge offsets --reset`) or "
        "the gateway starts again. A TubeMQ partition logs a WARNING instead and continues where its Broker starts; on "
        "Pulsar positions never go back.",
    )
    stamp_origin: bool = Field(
        default=True,
        description="Write `mqbridge.origin` (cluster, topic, partition, position) on every message. `false` keeps the origin "
        "that a message already has.",
    )
    prevent_loops: bool | None = Field(
        default=None,
        description="Drop messages whose origin is the target's cluster and topic, and messages that passed through `max_hops` "
        "gateways. Dropped messages are acknowledged and counted as looped. Null means the value of `stamp_origin`. Set it to "
        "false to write dead letters back to the topic that they came from.",
    )
    max_hops: int = Field(
        default=DEFAULT_MAX_HOPS, ge=1, description="Maximum number of gateways that a message may pass through."
    )
    rate: float | None = Field(
        default=None,
        gt=0,
        description="Maximum messages per second of this gateway, over all its source partitions; null means no limit.",
    )
    rate_bytes: Size | None = Field(
        default=None,
        gt=0,
        description="Maximum bytes per second of this gateway, over all its source partitions; null means no limit.",
    )

    @property
    def read_ahead_bytes(self) -> int:
        """The half of `in_flight_bytes` for messages that are read and wait to be sent, over all partitions."""
        return self.in_flight_bytes // 2

    @property
    def sending_bytes(self) -> int:
        """The half of `in_flight_bytes` for messages in flight to the targets: sent, and not yet confirmed."""
        return self.in_flight_bytes - self.read_ahead_bytes

    @property
    def loops_prevented(self) -> bool:
        """The value of `prevent_loops`, or that of `stamp_origin` if it is null."""
        return self.stamp_origin if self.prevent_loops is None else self.prevent_loops
