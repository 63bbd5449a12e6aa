"""Options of what a route promises, and of its limits."""

from typing import Literal

from pydantic import Field

from mqbridge.config.base import Name, Options
from mqbridge.config.units import Duration, Size

MIN_IN_FLIGHT_BYTES = 64 << 10
"""Below this a route would wait for a round trip after nearly every batch."""

MAX_HOPS = 8
"""Longer ways than this were not met; a loop that only this limit ends writes a message that many times."""


class Retry(Options):
    """How long what may pass is tried again."""

    max_elapsed: Duration | None = Field(
        default=None, gt=0, description="Transient failures are retried this long, then the route stops; null is for ever."
    )


class DeadLetter(Options):
    """Where messages go that a target refuses."""

    cluster: Name = Field(description="The cluster of the dead-letter topic.")
    topic: Name = Field(description="The dead-letter topic: an exact name.")


class Delivery(Options):
    """What a route promises, and within which limits it works."""

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
        description="Most bytes of the route that are read and not yet stored; bounds its memory and slows the source. Half "
        "of it is for what the source has ready, all partitions together, the rest for what is on its way to the targets.",
    )
    retry: Retry = Field(default=Retry(), description="How long what may pass is tried again.")
    dead_letter: DeadLetter | None = Field(
        default=None, description="Where messages go that a target refuses; null stops the route at the first such message."
    )
    on_gap: Literal["stop", "continue"] = Field(
        default="stop",
        description="What a partition does whose source no longer holds messages that were never read: stop and say so, or go on "
        "without them, which is logged and counted (`mqbridge_skipped_gaps_total`). What happened while the gateway was down is "
        "noticed by `state`, or where the group's own position shows it; not where the source itself moved the group on "
        "(Pulsar's time to live and backlog eviction), which looks as if another member had read. A source that went back (a "
        "topic made anew, a disk restored) stops the partition in any case, until the group's position is set anew (`mqbridge "
        "offsets --reset`).",
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
    def read_ahead_bytes(self) -> int:
        """What of `in_flight_bytes` the source may have ready, which no lane has taken yet (`InboundSpec.max_bytes`)."""
        return self.in_flight_bytes // 2

    @property
    def sending_bytes(self) -> int:
        """The rest of it: what was taken and is not stored."""
        return self.in_flight_bytes - self.read_ahead_bytes

    @property
    def loops_prevented(self) -> bool:
        """`prevent_loops`, or what holds where it is not given."""
        return self.stamp_origin if self.prevent_loops is None else self.prevent_loops
