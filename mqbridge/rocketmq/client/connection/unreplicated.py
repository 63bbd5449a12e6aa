"""Watches sends that a broker stores without the flush or the replica that its settings demand: SLAVE_NOT_AVAILABLE and others.

The messages can be consumed, but are lost if the broker's disk is. One WARNING says that this began, and one line that it ended.
"""

import logging
import time

from mqbridge.net.connectivity import Connectivity
from mqbridge.rocketmq.wire.codes import MEANINGS, status_name

log = logging.getLogger(__name__)

REPEAT_S = 60.0
"""A broker that changes between both states gets a WARNING at most once in this time."""


class UnreplicatedSends:
    """The brokers that now store messages without flush or replica; all clients of a cluster count in its `connectivity`."""

    def __init__(self, connectivity: Connectivity) -> None:
        self.brokers: dict[str, int] = {}
        """The last status of each such broker, by broker name."""
        self._connectivity = connectivity
        self._warned_at: dict[str, float] = {}
        """Time of the last WARNING (`time.monotonic`), by broker name."""

    def record(self, broker: str, status: int, count: int) -> None:
        """Record that a broker has stored `count` messages with this status, which is not SUCCESS."""
        self._connectivity.unreplicated += count
        if broker in self.brokers:
            self.brokers[broker] = status
            return
        self.brokers[broker] = status
        now = time.monotonic()
        is_repeated = now - self._warned_at.get(broker, -REPEAT_S) < REPEAT_S
        if not is_repeated:
            self._warned_at[broker] = now
        log.log(
            logging.DEBUG if is_repeated else logging.WARNING,
            "cluster %s: broker %s stores messages without the flush or the replica that its settings demand: %s (%s). They are "
            "lost if its disk is lost. Check its slaves and its disk",
            self._connectivity.name,
            broker,
            status_name(status),
            MEANINGS[status].text,
        )

    def record_success(self, broker: str) -> None:
        """Record that a broker, which is one of `brokers`, has stored a message as its settings demand."""
        del self.brokers[broker]
        log.info("cluster %s: broker %s stores messages with flush and replica again", self._connectivity.name, broker)
