"""Values of options, read from text. Each parser raises ValueError that says what is wrong and what is right."""

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

OFFSETS_VERSION = 1
"""Of the offsets that a stream writes to its checkpoint."""
_KAFKA = {-1: Start.LATEST, -2: Start.EARLIEST}


@dataclass(frozen=True, slots=True)
class ExplicitOffsets:
    """Positions, or an end, by topic and by the name or the index of a partition."""

    topics: Mapping[str, Mapping[str, Start | Position]]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first message stored at this time (ms since the epoch) or later."""

    time_ms: int


OffsetSpec = Start | ExplicitOffsets | AtTimestamp
"""Where a reading begins or ends."""


def nonempty(value: str) -> str:
    """Anything but nothing."""
    if not value.strip():
        raise ValueError("it is empty")
    return value.strip()


def names(value: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not found:
        raise ValueError("it names nothing")
    return found


def pattern(value: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(nonempty(value))
    except re.error as error:
        raise ValueError(f"{value!r} is no Python regular expression: {error}") from error


def count(value: str) -> int:
    """A whole number above zero."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"{value!r} is no whole number above 0")
    return number


def size(value: str) -> int:
    """Bytes above zero, such as `64MiB`."""
    found = parse_size(value.strip())
    if not found:
        raise ValueError("it must be above 0")
    return found


def duration(value: str) -> float:
    """Seconds of `1m30s`."""
    return parse_duration(value.strip())


def truth(value: str) -> bool:
    """`true` or `false`."""
    return one_of("true", "false")(value) == "true"


def one_of(*words: str) -> Callable[[str], str]:
    """A parser of one of these words, however it is cased."""

    def parse(value: str) -> str:
        found = value.strip().lower()
        if found not in words:
            raise ValueError(f"{value!r} is none of {', '.join(words)}. {nearest(value, words)}")
        return found

    return parse


def time_ms(value: str) -> int:
    """Milliseconds since the epoch of such a number, or of an ISO time; one without a zone is UTC."""
    if value.strip().isdigit():
        return int(value)
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError as error:
        raise ValueError(f"{value!r} is no time: write ms since the epoch, or as in 2026-01-31T12:00:00Z") from error
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def assignment(value: str) -> dict[str, tuple[str, ...]]:
    """`{"orders": [0, 1]}`."""
    found: dict[str, tuple[str, ...]] = {}
    for topic, partitions in _object(value).items():
        if not isinstance(partitions, list) or not partitions or not all(_is_partition(one) for one in partitions):
            raise ValueError(f'topic {topic!r} needs a list of names or indexes of partitions, as in {{"orders": [0, 1]}}')
        found[topic] = tuple(dict.fromkeys(map(str, partitions)))
    if not found:
        raise ValueError("it names nothing")
    return found


def edge(value: str) -> OffsetSpec:
    """`earliest`, `latest`, or positions as people write them or as a stream writes them."""
    if not value.strip().startswith("{"):
        return Start(one_of("earliest", "latest")(value))
    found = _object(value)
    if is_stream_offsets(found):
        found = found["topics"]
    return ExplicitOffsets({topic: {name: _position(topic, name, one) for name, one in _positions(topic, positions).items()}
                  for topic, positions in found.items()})  # fmt: skip


def is_stream_offsets(offsets: Mapping[str, Any]) -> bool:
    """Whether it has the form of the offsets in a checkpoint: such can be given as startingOffsets too."""
    return (
        offsets.keys() == {"topics", "version"} and offsets["version"] == OFFSETS_VERSION and isinstance(offsets["topics"], dict)
    )


def _positions(topic: str, positions: Any) -> dict[str, Any]:
    if isinstance(positions, dict):
        return positions
    raise ValueError(f'topic {topic!r} needs positions by partition, as in {{"orders": {{"0": 23, "1": -2}}}}')


def _position(topic: str, name: str, value: Any) -> Start | Position:
    if isinstance(value, int) and not isinstance(value, bool) and value in _KAFKA:
        return _KAFKA[value]
    if isinstance(value, str) and value in map(str, _KAFKA):
        return _KAFKA[int(value)]
    text = str(value) if isinstance(value, int) and value >= 0 else value
    try:
        return parse_position(text)
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f'{value!r} is no position of partition {name!r} of topic {topic!r}: write a number, a text such as "12:3:0", '
            "-2 for earliest or -1 for latest"
        ) from error


def _object(value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    if isinstance(found, dict):
        return found
    raise ValueError("it is no JSON object")


def _is_partition(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)
