"""Conversion between topic names as the application writes them and full names."""

from mqbridge.errors import ConfigError
from mqbridge.pulsar.wire.names import parse_topic


class TopicNames:
    """Topics of one consumer by full name; received messages name the topic as the application has written it."""

    def __init__(self, topics: list[str]) -> None:
        self._given = {full_name(topic): topic for topic in topics}
        self._known: dict[str, tuple[str, str]] = {}

    @property
    def full_names(self) -> list[str]:
        """Full names of the consumer's topics."""
        return list(self._given)

    def topic_and_partition(self, concrete: str) -> tuple[str, str]:
        """Return the topic as the application has written it, and the partition index as text ("" if unpartitioned)."""
        known = self._known.get(concrete)
        if known is None:
            name = parse_topic(concrete)
            parent, index = str(name.parent), name.partition_index
            if index < 0 or concrete in self._given:  # the application may subscribe to a single partition by its name
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
