"""Rows to elements and back: what enters a pass through Python, and what leaves it.

Between two passes (where rows change tasks, or stay as state) an element is a row: its key as JSON text, its value as bytes of
the stream's codec, and its time. Within a pass it is whatever the functions make it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import orjson
from pyspark.sql.types import BinaryType, DataType, DoubleType, LongType, StringType

from mqbridge.spark.streams.rip58.codecs import Codec, key_text


class Pair(NamedTuple):
    """What a deserializer gives: a key (None if it has none) and a value."""

    key: Any
    value: Any


Element = tuple[Any, Any, int]
"""What steps take and give: key, value, and time in microseconds since 1970. A plain tuple: one is made per record and step."""


class Reader(ABC):
    """Makes an element of a row."""

    columns: ClassVar[tuple[str, ...]]
    """Of the rows, `event_time` excepted, which comes last."""

    @abstractmethod
    def read(self, row: tuple[Any, ...]) -> Element | None:
        """The element; None for a row that is none."""


@dataclass(frozen=True)
class PayloadReader(Reader):
    """Messages of the source, by a deserializer. A message without payload (a tombstone) is no element."""

    deserialize: Callable[[bytes], Any]
    columns: ClassVar = ("payload",)

    def read(self, row: tuple[Any, ...]) -> Element | None:  # noqa: D102
        payload, micros = row
        if payload is None:
            return None
        value = self.deserialize(payload)
        return (value.key, value.value, micros) if isinstance(value, Pair) else (None, value, micros)


@dataclass(frozen=True)
class ValueReader(Reader):
    """Rows of an earlier pass, or of an aggregate."""

    codec: Codec
    columns: ClassVar = ("key", "value")

    def read(self, row: tuple[Any, ...]) -> Element:  # noqa: D102
        key, value, micros = row
        return orjson.loads(key), None if value is None else self.codec.loads(value), micros


@dataclass(frozen=True)
class JoinReader(Reader):
    """Rows of a join, by the function of both values; of a left join's row without partner the right one is None."""

    codec: Codec
    action: Callable[[Any, Any], Any]
    columns: ClassVar = ("key", "left", "right")

    def read(self, row: tuple[Any, ...]) -> Element:  # noqa: D102
        key, left, right, micros = row
        values = [None if value is None else self.codec.loads(value) for value in (left, right)]
        return orjson.loads(key), self.action(*values), micros


class Writer(ABC):
    """Makes a row of an element."""

    fields: ClassVar[dict[str, DataType]]
    """Of the rows, `event_time` excepted, which comes last."""

    @abstractmethod
    def write(self, element: Element) -> tuple[Any, ...]:
        """The row."""


@dataclass(frozen=True)
class KeyedWriter(Writer):
    """Rows to group or join: with the number that `select` finds in the value, for the aggregates of the JVM.

    An integer stays one (`whole`), and any other number is a double (`real`); `keep_value` is off where nobody needs the value.
    """

    codec: Codec
    select: Callable[[Any], Any] | None = None
    keep_value: bool = True
    fields: ClassVar = {"key": StringType(), "value": BinaryType(), "whole": LongType(), "real": DoubleType()}

    def write(self, element: Element) -> tuple[Any, ...]:  # noqa: D102
        key, value, micros = element
        data = self.codec.dumps(value) if self.keep_value else None
        number = None if self.select is None else self.select(value)
        if number is None:
            return key_text(key), data, None, None, micros
        if isinstance(number, int):
            if not -(1 << 63) <= number < 1 << 63:
                raise OverflowError(f"{number} is no 64 bit integer")
            return key_text(key), data, int(number), None, micros
        return key_text(key), data, None, float(number), micros


@dataclass(frozen=True)
class PayloadWriter(Writer):
    """Messages for the sink. The message's key is the element's: a text as it is, anything else as JSON."""

    serialize: Callable[[Any, Any], bytes | None]
    fields: ClassVar = {"payload": BinaryType(), "key": BinaryType()}

    def write(self, element: Element) -> tuple[Any, ...]:  # noqa: D102
        key, value, micros = element
        encoded = None if key is None else (key if isinstance(key, str) else key_text(key)).encode()
        return self.serialize(key, value), encoded, micros


class TextWriter(Writer):
    """Lines to print."""

    fields: ClassVar = {"text": StringType()}

    def write(self, element: Element) -> tuple[Any, ...]:  # noqa: D102
        key, value, micros = element
        return f"(key: {key}, data: {value})", micros
