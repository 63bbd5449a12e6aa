"""Python functions over the elements of a stream: as many as follow each other are one pass of the rows through Python.

Between two passes (where rows change tasks, or stay as state) an element is a row: its key as JSON text, its value as bytes of
the stream's codec, and its time. Within a pass it is whatever the functions make it.
"""

import json
import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import orjson
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, DoubleType, LongType, StringType, StructField, StructType, TimestampType

LOG = logging.getLogger(__name__)


class Pair(NamedTuple):
    """What a deserializer gives: a key (None if it has none) and a value."""

    key: Any
    value: Any


Element = tuple[Any, Any, int]
"""What steps take and give: key, value, and time in microseconds since 1970. A plain tuple: one is made per record and step."""


class Codec(Protocol):
    """How values travel between tasks and lie in state. It is pickled."""

    def dumps(self, value: Any) -> bytes:
        """The bytes of a value."""

    def loads(self, data: bytes) -> Any:
        """The value of these bytes."""


class JsonCodec:
    """Values as JSON has them: dicts, lists, texts, numbers, booleans and None. A dataclass comes back as a dict."""

    def dumps(self, value: Any) -> bytes:
        """Raises TypeError for what JSON has not."""
        return orjson.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Numbers as Spark writes them too, NaN included."""
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return json.loads(data)


class PickleCodec:
    """Any object that can be pickled: its class has to be importable for as long as the checkpoint lives."""

    def dumps(self, value: Any) -> bytes:
        """A pickle."""
        return pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        """The object."""
        return pickle.loads(data)  # noqa: S301 - our own checkpoint and shuffle


JSON = JsonCodec()


def key_text(key: Any) -> str:
    """A key as JSON, the same text for equal keys."""
    return orjson.dumps(key, option=orjson.OPT_SORT_KEYS).decode()


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


Step = Callable[[Element], Iterable[Element]]


@dataclass(frozen=True)
class Pass:
    """One pass of rows through Python: read, then the steps, then write.

    `skip_errors`: a row whose functions fail yields nothing, and is logged; else the failure ends the query. `only_errors`: the
    other half, for dead letters: payload and reason of each row that fails.
    """

    reader: Reader
    steps: tuple[Step, ...]
    writer: Writer
    skip_errors: bool
    only_errors: bool = False

    def over(self, frame: DataFrame) -> DataFrame:
        """The frame's rows, passed. The watermark of `event_time`, if there is one, stays."""
        columns: list[Column] = [F.col(name) for name in self.reader.columns]
        time = frame.schema["event_time"]
        fields = {"payload": BinaryType(), "error": StringType()} if self.only_errors else self.writer.fields
        schema = StructType(
            [
                *[StructField(name, kind) for name, kind in fields.items()],
                StructField("event_time", TimestampType(), metadata=time.metadata),
            ]
        )
        return frame.select(*columns, F.unix_micros("event_time").alias("event_time")).mapInArrow(Runner(self, schema), schema)

    def rows(self, row: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """What one row yields. Raises whatever the functions raise."""
        first = self.reader.read(row)
        elements = [] if first is None else [first]
        for step in self.steps:
            elements = [out for element in elements for out in step(element)]
        return list(map(self.writer.write, elements))


@dataclass(frozen=True)
class Runner:
    """The function that Spark's workers call."""

    work: Pass
    schema: StructType

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One batch of rows after the other."""
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for batch in batches:
            rows: list[tuple[Any, ...]] = []
            failed = 0
            for row in zip(*[column.to_pylist() for column in batch.columns], strict=True):
                try:
                    passed = self.work.rows(row)
                except Exception as error:
                    if not self.work.skip_errors:
                        raise
                    passed, failed = [], failed + 1
                    if self.work.only_errors:
                        rows.append((row[0], f"{type(error).__name__}: {error}", row[-1]))
                    elif failed == 1:
                        LOG.warning("a record is skipped, as all are that fail like it", exc_info=True)
                if not self.work.only_errors:
                    rows.extend(passed)
            if failed and not self.work.only_errors:
                LOG.warning("%d of %d records skipped", failed, batch.num_rows)
            columns = zip(*rows, strict=True) if rows else [()] * len(schema)
            arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
