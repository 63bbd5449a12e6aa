"""Readers convert rows to elements at the start of a pass through Python; writers convert elements to rows at its end.

A pass runs consecutive steps (Python functions) in one Python worker. Between two passes, where rows are shuffled or stored as
state, an element is a row: its key as JSON text, its value as bytes from the codec of the stream, and its time. Within a pass,
key and value are any Python objects.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import orjson
from pyspark.sql.types import BinaryType, DataType, DoubleType, LongType, StringType

from mqbridge.spark.streams.rip58.codecs import Codec, key_text


class Pair(NamedTuple):
    """A key (or None) and a value, as a deserializer may return them."""

    key: Any
    value: Any


Element = tuple[Any, Any, int]
"""Key, value, and time in microseconds since 1970. It is a plain tuple for speed: each step creates one per record."""


class Reader(ABC):
    """Converts rows to elements."""

    columns: ClassVar[tuple[str, ...]]
    """The columns to read. `event_time` is not listed: a pass always reads it as the last column."""

    @abstractmethod
    def read(self, row: tuple[Any, ...]) -> Element | None:
        """Return the element of a row, or None if the row is left out."""


@dataclass(frozen=True)
class PayloadReader(Reader):
    """Reads messages of the source with a deserializer. A message without payload (a tombstone) is left out."""

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
    """Reads rows of an earlier pass or of an aggregate. A null result, such as the average of no numbers, becomes None."""

    codec: Codec
    columns: ClassVar = ("key", "value")

    def read(self, row: tuple[Any, ...]) -> Element:  # noqa: D102
        key, value, micros = row
        return orjson.loads(key), None if value is None else self.codec.loads(value), micros


@dataclass(frozen=True)
class JoinReader(Reader):
    """Reads rows of a join: `action(left, right)` returns the value. In a left join the right value may be None."""

    codec: Codec
    action: Callable[[Any, Any], Any]
    columns: ClassVar = ("key", "left", "right")

    def read(self, row: tuple[Any, ...]) -> Element:  # noqa: D102
        key, left, right, micros = row
        values = [None if value is None else self.codec.loads(value) for value in (left, right)]
        return orjson.loads(key), self.action(*values), micros


class Writer(ABC):
    """Converts elements to rows."""

    fields: ClassVar[dict[str, DataType]]
    """The columns to write, with their types. `event_time` is not listed: a pass always writes it as the last column."""

    @abstractmethod
    def write(self, element: Element) -> tuple[Any, ...]:
        """Return the row of an element."""


@dataclass(frozen=True)
class KeyedWriter(Writer):
    """Writes rows that the JVM groups or joins. `select` returns the number that the JVM aggregates for a value.

    An integer is written to the column `whole`, any other number as a double to `real`; both are null without a number. Without
    `keep_value` the column `value` is null, for aggregates that need only the number.
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
                raise OverflowError(f"the integer {number} needs more than 64 bits")
            return key_text(key), data, int(number), None, micros
        return key_text(key), data, None, float(number), micros


@dataclass(frozen=True)
class PayloadWriter(Writer):
    """Writes messages for the sink. A key that is a string is written unchanged, any other key as JSON.

    If `serialize` returns None, the message has no payload (a tombstone).
    """

    serialize: Callable[[Any, Any], bytes | None]
    fields: ClassVar = {"payload": BinaryType(), "key": BinaryType()}

    def write(self, element: Element) -> tuple[Any, ...]:  # noqa: D102
        key, value, micros = element
        encoded = None if key is None else (key if isinstance(key, str) else key_text(key)).encode()
        return self.serialize(key, value), encoded, micros


class TextWriter(Writer):
    """Writes lines of text for `print()`."""

    fields: ClassVar = {"text": StringType()}

    def write(self, element: Element) -> tuple[Any, ...]:  # noqa: D102
        key, value, micros = element
        return f"(key: {key}, data: {value})", micros
