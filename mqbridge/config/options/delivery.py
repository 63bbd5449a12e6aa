"""Options of a route's delivery guarantees and limits."""

from typing import Literal

from pydantic import Field

from mqbridge.config.base import Name, Options
from mqbridge.config.units import Duration, Size

MIN_IN_FLIGHT_BYTES = 64 << 10
"""With less, a route would wait for a round trip after nearly every batch."""

MAX_HOPS = 8
"""Longer paths have not been seen; a loop that only this limit ends writes a message that many times."""


class Retry(Options):
    """How long transient failures are retried."""

    max_elapsed: Duration | None = Field(
        default=None, gt=0, description="Transient failures are retried this long, then the route stops; null means forever."
    )


class DeadLetter(Options):
    """The dead-letter topic, for messages that a target refuses."""

    cluster: Name = Field(description="The cluster of the dead-letter topic.")
    topic: Name = Field(description="The dead-letter topic: an exact name.")


class Delivery(Options):
    """Delivery guarantees and limits of a route."""

    guarantee: Literal["at_least_once"] = Field(
        default="at_least_once",
        description="A source message is acknowledged only after every target, or the dead-letter topic, has stored it.",
    )
    order: Literal["partition", "none"] = Field(
        default="partition", description="`partition` keeps the order of each source partition; `none` lets targets reorder."
    )
    in_flight_bytes: Size = Field(
        default=16 << 20,
        ge=MIN_IN_FLIGHT_BYTES,
        description="Maximum bytes of the route that are read and not yet stored; bounds its memory and slows the source. Half "
        "of it is for reading ahead, over all partitions, the rest for messages in flight to the targets.",
    )
    retry: Retry = Field(default=Retry(), description="How long transient failures are retried.")
    dead_letter: DeadLetter | None = Field(
        default=None, description="The topic for messages that a target refuses; null stops the route at the first such message."
    )
    on_gap: Literal["stop", "continue"] = Field(
        default="stop",
        description="What to do with a partition whose source no longer holds messages that were never read: stop and report it, "
        "or continue without them, logged and counted (`mqbridge_skipped_gaps_total`). Gaps from while the gateway was down are "
        "detected by `state`, or where the group's own position shows them; not if the source itself moved the group "
        "(Pulsar's time to live and backlog eviction), which looks as if another member had read. A source whose positions went "
        "back (a topic created anew, a disk restored) always stops the partition, until the group's position is reset (`mqbridge "
        "offsets --reset`).",
    )
    stamp_origin: bool = Field(
        default=True, description="Write `mqbridge.origin` (cluster, topic, partition, position) on every message."
    )
    prevent_loops: bool | None = Field(
        default=None,
        description="Do not write a message to the cluster and topic that its origin names, nor one that passed through "
        "`max_hops` gateways: it is acknowledged, and counted as looped. Null means the value of `stamp_origin`. Turn it off to "
        "put dead letters back into the topic that they came from.",
    )
    max_hops: int = Field(default=MAX_HOPS, ge=1, description="Maximum number of gateways that a message may pass through.")
    rate: float | None = Field(default=None, gt=0, description="Maximum messages per second over all lanes; null means no limit.")
    rate_bytes: Size | None = Field(
        default=None, gt=0, description="Maximum bytes per second over all lanes; null means no limit."
    )

    @property
    def read_ahead_bytes(self) -> int:
        """The part of `in_flight_bytes` for reading ahead, not received by a lane yet (`InboundSpec.max_bytes`)."""
        return self.in_flight_bytes // 2

    @property
    def sending_bytes(self) -> int:
        """The other part: received and not stored yet."""
        return self.in_flight_bytes - self.read_ahead_bytes

    @property
    def loops_prevented(self) -> bool:
        """The value of `prevent_loops`, or its default."""
        return self.stamp_origin if self.prevent_loops is None else self.prevent_loops
