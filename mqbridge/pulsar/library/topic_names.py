"""Topic names as programs write them, and as brokers know them."""

from mqbridge.errors import ConfigError
from mqbridge.pulsar.wire.names import parse_topic


class TopicNames:
    """Full names of the topics of one consumer, and back: messages name the topic as the program does."""

    def __init__(self, topics: list[str]) -> None:
        self._given = {full_name(topic): topic for topic in topics}
        self._known: dict[str, tuple[str, str]] = {}

    @property
    def full_names(self) -> list[str]:
        """Of the topics that were given."""
        return list(self._given)

    def topic_and_partition(self, concrete: str) -> tuple[str, str]:
        """Return the topic as it was given, and the number of the partition, "" for an unpartitioned topic."""
        known = self._known.get(concrete)
        if known is None:
            name = parse_topic(concrete)
            parent, index = str(name.parent), name.partition_index
            if index < 0 or concrete in self._given:  # a partition may be subscribed to by its own name
                known = self._given.get(concrete, concrete), "" if index < 0 else str(index)
            else:
                known = self._given.get(parent, parent), str(index)
            self._known[concrete] = known
        return known


def full_name(topic: str) -> str:
    """Return `persistent://public/default/orders` for `orders`. Raises ConfigError."""
    try:
        return str(parse_topic(topic))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def concrete_name(topic: str, partition: str) -> str:
    """Return the name of a partition, or of an unpartitioned topic."""
    name = parse_topic(topic)
    return str(name.partition(int(partition)) if partition and name.partition_index < 0 else name)
