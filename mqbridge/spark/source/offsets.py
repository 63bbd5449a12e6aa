"""Offsets: one position per partition, and their JSON form in the checkpoint of a stream.

The form has a version. Its keys are sorted, because Spark compares offsets as text: in another order, the same offsets would look
like new messages.
"""

from collections.abc import Mapping
from typing import Any

from mqbridge.errors import ConfigError
from mqbridge.message import Position, format_position, parse_position
from mqbridge.spark.option_values import OFFSETS_VERSION

PartitionKey = tuple[str, str]
"""A partition of the source cluster: the name of its topic, and its own name."""
Offsets = Mapping[PartitionKey, Position]
"""For each partition the position of the next message to read."""


def describe_partition(key: PartitionKey) -> str:
    """Return the words for a partition in errors and log lines. They do not name the cluster."""
    return f"partition {key[1]!r} of topic {key[0]!r}"


def dump_offsets(offsets: Offsets) -> dict[str, Any]:
    """Return the JSON form that Spark writes into the checkpoint."""
    topics: dict[str, dict[str, str]] = {}
    for (topic, name), position in sorted(offsets.items()):
        topics.setdefault(topic, {})[name] = format_position(position)
    return {"topics": topics, "version": OFFSETS_VERSION}


def load_offsets(document: Any) -> dict[PartitionKey, Position]:
    """Parse the JSON form of offsets. Raises ConfigError for another version, or offsets of another source."""
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > OFFSETS_VERSION:
        raise ConfigError(
            f"the checkpoint has offsets of version {version}, this mqbridge reads version {OFFSETS_VERSION}",
            hint="Use the mqbridge that wrote it or a later one, or begin with a new checkpointLocation",
        )
    try:
        topics: Any = document["topics"] if version == OFFSETS_VERSION else None
        return {(topic, name): parse_position(text) for topic, positions in topics.items() for name, text in positions.items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the checkpoint has offsets that this source did not write: {str(document)[:200]}",
            hint="The query's sources were changed, or the folder is another query's: begin with a new checkpointLocation",
        ) from error
