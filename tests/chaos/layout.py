"""How the topics of a direction are laid out, and how its route chooses target partitions."""

from __future__ import annotations

from typing import Literal, NamedTuple

By = Literal["identity", "modulo", "key"]
IDENTITY: By = "identity"
MODULO: By = "modulo"
KEY: By = "key"
KEYS = 4
"""Number of keys in each source partition."""


class Layout(NamedTuple):
    """The option `partitions.by` of a route, and where its topics are."""

    by: By = IDENTITY
    at_one_broker: bool = False
    """True if topics in RocketMQ have queues at the first broker only, which faults stop."""

    def __str__(self) -> str:
        return f"by {self.by}{', RocketMQ topics at one broker' if self.at_one_broker else ''}"


def key(partition: int, number: int) -> str:
    """Return the key of a message, by its source partition and its number there."""
    return f"{partition}-{number % KEYS}"
