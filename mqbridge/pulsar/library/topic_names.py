"""Conversion between topic names as the application writes them and full names."""

from mqbridge.errors import ConfigError
from mqbridge.pulsar.wire.names import parse_topic


class TopicNames:
    """The topics of one consumer. Maps the full name on a received message to the topic as the application has written it."""

    def __init__(self, topics: list[str]) -> None:
        self._names_by_full_name = {full_name(topic): topic for topic in topics}
        self._cache: dict[str, tuple[str, str]] = {}
        """Results of `topic_and_partition`, by its argument."""

    @property
    def full_names(self) -> list[str]:
        """Full names of the consumer's topics."""
        return list(self._names_by_full_name)

    def topic_and_partition(self, partition_topic: str) -> tuple[str, str]:
        """Return the topic as the application has written it, and the partition index as text ("" if unpartitioned).

        `partition_topic` is the full name of a partition or of an unpartitioned topic. A topic that a pattern has selected is
        returned as its full name.
        """
        result = self._cache.get(partition_topic)
        if result is None:
            name = parse_topic(partition_topic)
            parent, index = str(name.parent), name.partition_index
            # -1: unpartitioned. The application may also subscribe to a single partition by its name.
            if index < 0 or partition_topic in self._names_by_full_name:
                result = self._names_by_full_name.get(partition_topic, partition_topic), "" if index < 0 else str(index)
            else:
                result = self._names_by_full_name.get(parent, parent), str(index)
            self._cache[partition_topic] = result
        return result


def full_name(topic: str) -> str:
    """Return the full name of a topic: `persistent://public/default/orders` for `orders`. Raises ConfigError."""
    try:
        return str(parse_topic(topic))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def partition_topic_name(topic: str, partition: str) -> str:
    """Return the full name of a partition; `partition` is its index as text, "" for an unpartitioned topic.

    If `partition` is empty, or `topic` is the name of a partition already, this is the full name of `topic`.
    """
    name = parse_topic(topic)
    return str(name.partition(int(partition)) if partition and name.partition_index < 0 else name)
