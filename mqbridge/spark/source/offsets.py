"""Positions of all partitions at once, and their form in the checkpoint of a stream.

The form has a version, and its keys are sorted: Spark compares offsets as text, so another order would be new data.
"""

from collections.abc import Mapping
from typing import Any

from mqbridge.errors import ConfigError
from mqbridge.message import Position, format_position, parse_position
from mqbridge.spark.option_values import VERSION

Key = tuple[str, str]
"""A partition: its topic, and its name in it."""
Offsets = Mapping[Key, Position]


def spoken(key: Key) -> str:
    """For messages."""
    return f"partition {key[1]!r} of topic {key[0]!r}"


def dump_offsets(offsets: Offsets) -> dict[str, Any]:
    """As Spark writes it into the checkpoint."""
    topics: dict[str, dict[str, str]] = {}
    for (topic, name), position in sorted(offsets.items()):
        topics.setdefault(topic, {})[name] = format_position(position)
    return {"topics": topics, "version": VERSION}


def load_offsets(written: Any) -> dict[Key, Position]:
    """Read it back. Raises ConfigError where it is of a later version, or of another source."""
    version = written.get("version") if isinstance(written, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(
            f"the checkpoint has offsets of version {version}, this mqbridge reads version {VERSION}",
            hint="Use the mqbridge that wrote it or a later one, or begin with a new checkpointLocation",
        )
    try:
        topics: Any = written["topics"] if version == VERSION else None
        return {(topic, name): parse_position(text) for topic, positions in topics.items() for name, text in positions.items()}
    except (ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"the checkpoint's offsets are none of this source: {str(written)[:200]}",
            hint="The query's sources were changed, or the folder is another query's: begin with a new checkpointLocation",
        ) from error
