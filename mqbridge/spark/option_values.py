"""Parsers of the texts of options. Each raises ValueError with the problem; the caller adds the name of the option."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mqbridge.adapter.inbound import Start
from mqbridge.config.problems import nearest
from mqbridge.config.units import parse_duration, parse_size
from mqbridge.message import Position, parse_position
from mqbridge.wire.bounded_pattern import Ambiguous, BoundedPattern

OFFSETS_VERSION = 1
"""Version of the JSON format in which a stream writes offsets to its checkpoint."""
_KAFKA_STARTS = {-1: Start.LATEST, -2: Start.EARLIEST}
"""The numbers that, as in Spark's Kafka source, mean latest and earliest instead of an offset."""


@dataclass(frozen=True, slots=True)
class ExplicitOffsets:
    """Positions that the user chose for single partitions."""

    topics: Mapping[str, Mapping[str, Start | Position]]
    """By topic, then by partition (its name or its index): a position, or earliest or latest."""


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The position of the first message stored at this time (ms since the epoch) or later."""

    time_ms: int


OffsetSpec = Start | ExplicitOffsets | AtTimestamp
"""Where a read begins or ends."""


def parse_text(value: str) -> str:
    """Return the text without the spaces around it. Raises ValueError if nothing is left."""
    if not value.strip():
        raise ValueError("the value is empty")
    return value.strip()


def parse_names(value: str) -> tuple[str, ...]:
    """Parse comma-separated names, and drop duplicates."""
    unique_names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not unique_names:
        raise ValueError(f"{value!r} contains no name")
    return unique_names


def parse_pattern(value: str) -> BoundedPattern:
    """Parse a regular expression."""
    try:
        return BoundedPattern(parse_text(value))
    except Ambiguous as error:
        raise ValueError(f"{value!r} could take longer than anybody waits: {error}; write a+ for (a+)+") from error
    except re.error as error:
        raise ValueError(f"{value!r} is not a Python regular expression: {error}") from error


def parse_count(value: str) -> int:
    """Parse an integer above zero."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{value!r} is not an integer above 0")
    return number


def parse_positive_size(value: str) -> int:
    """Parse a number of bytes above zero, such as `64MiB`."""
    size_bytes = parse_size(value.strip())
    if not size_bytes:
        raise ValueError(f"{value!r} is not above 0")
    return size_bytes


def parse_seconds(value: str) -> float:
    """Parse a duration such as `1m30s`, and return it in seconds."""
    return parse_duration(value.strip())


def parse_boolean(value: str) -> bool:
    """Parse `true` or `false`."""
    return make_word_parser("true", "false")(value) == "true"


def make_word_parser(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts one of these words, in upper or lower case, and returns it in lower case."""

    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(f"{value!r} is not one of {', '.join(words)}. {nearest(value, words)}")
        return word

    return parse


def parse_time_ms(value: str) -> int:
    """Parse a number of milliseconds since the epoch, or an ISO time, which is UTC if it has no zone."""
    if value.strip().isdecimal():
        return int(value)
    try:
        time = datetime.fromisoformat(value.strip())
    except ValueError as error:
        raise ValueError(f"{value!r} is not a time: write ms since the epoch, or a time such as 2026-01-31T12:00:00Z") from error
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_assignment(value: str) -> dict[str, tuple[str, ...]]:
    """Parse partitions by topic, such as `{"orders": [0, 1]}`."""
    assigned: dict[str, tuple[str, ...]] = {}
    for topic, partitions in _parse_json_object(value).items():
        if not isinstance(partitions, list) or not partitions or not all(map(_is_partition, partitions)):
            raise ValueError(f'topic {topic!r} needs a list of names or indexes of partitions, as in {{"orders": [0, 1]}}')
        assigned[topic] = tuple(dict.fromkeys(map(str, partitions)))
    if not assigned:
        raise ValueError(f"{value!r} contains no topic")
    return assigned


def parse_offsets(value: str) -> OffsetSpec:
    """Parse `earliest`, `latest`, or JSON with positions: as users write it, or as a stream writes it to its checkpoint."""
    if not value.strip().startswith("{"):
        return Start(make_word_parser("earliest", "latest")(value))
    topics = _parse_json_object(value)
    if is_stream_offsets(topics):
        topics = topics["topics"]
    return ExplicitOffsets(
        {
            topic: {
                name: _parse_position_or_start(topic, name, position)
                for name, position in _require_mapping(topic, positions).items()
            }
            for topic, positions in topics.items()
        }
    )


def is_stream_offsets(document: Mapping[str, Any]) -> bool:
    """Return whether a JSON object with offsets was written by a stream to its checkpoint."""
    return (
        document.keys() == {"topics", "version"}
        and document["version"] == OFFSETS_VERSION
        and isinstance(document["topics"], dict)
    )


def _require_mapping(topic: str, positions: Any) -> dict[str, Any]:
    if isinstance(positions, dict):
        return positions
    raise ValueError(f'topic {topic!r} needs positions by partition, as in {{"orders": {{"0": 23, "1": -2}}}}')


def _parse_position_or_start(topic: str, name: str, value: Any) -> Start | Position:
    if isinstance(value, int) and not isinstance(value, bool) and value in _KAFKA_STARTS:
        return _KAFKA_STARTS[value]
    if isinstance(value, str) and value in map(str, _KAFKA_STARTS):
        return _KAFKA_STARTS[int(value)]
    text = str(value) if isinstance(value, int) and value >= 0 else value
    try:
        return parse_position(text)
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f'{value!r} is not a position of partition {name!r} of topic {topic!r}: write a number, a text such as "12:3:0", '
            "-2 for earliest or -1 for latest"
        ) from error


def _parse_json_object(value: str) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not JSON: {error}") from error
    if isinstance(document, dict):
        return document
    raise ValueError(f"{value!r} is not a JSON object")


def _is_partition(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
