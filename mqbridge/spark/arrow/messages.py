"""From record batches back to messages.

Columns may be missing, but for the payload; what is not there is as a message has it by default. With the compiled module
ordinary rows become native messages, which the encoders of all systems take as they are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mqbridge.errors import ConfigError
from mqbridge.message import NO_SOURCE, Batch, Message
from mqbridge.spark.arrow import lists
from mqbridge.spark.arrow.columns import Columns
from mqbridge.spark.arrow.native_columns import native_messages
from mqbridge.spark.schema import parse_source

Arrays = dict[str, pa.Array]


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Consecutive rows of one source partition.

    batch      their messages; of NO_SOURCE when the rows have no source or no position
    first_row  the row of the record batch that they begin at
    is_part    whether their task read only a part of the partition's range
    """

    batch: Batch
    first_row: int
    is_part: bool


class MessageReader:
    """Reads messages from record batches of one schema. Raises ConfigError for columns that cannot be read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = Columns(schema)

    def runs(self, rows: pa.RecordBatch) -> list[SourceRun]:
        """The rows as batches, one per run of rows with the same `source`. Raises ConfigError for values that cannot be read."""
        arrays = self._columns.arrays(rows)
        try:
            messages = _read_messages(arrays, len(rows), text_key=self._columns.text_key)
            return _cut(messages, arrays)
        except ValueError as error:
            raise ConfigError(f"rows cannot be written: {error}") from error


def batches_of(rows: pa.RecordBatch) -> list[Batch]:
    """The rows as batches, one per run of rows with the same `source`. Raises ConfigError for columns that cannot be read."""
    return [run.batch for run in MessageReader(rows.schema).runs(rows)]


_READERS: dict[str, tuple[Callable[[pa.Array], Sequence[Any]], Any]] = {
    "payload": (lists.values_of, None),
    "properties": (lists.properties_of, ()),
    "key": (lists.values_of, None),
    "ordering_key": (lists.values_of, None),
    "keys": (lists.text_lists_of, ()),
    "msg_type": (lists.texts_of, None),
    "attributes": (lists.values_of, None),
    "event_time": (lists.times_of, None),
    "publish_time": (lists.times_of, None),
    "deliver_at": (lists.times_of, None),
    "delivery_count": (lists.counts_of, 0),
    "position": (lists.positions_of, ()),
    "origin": (lists.texts_of, None),
    "hops": (lists.counts_of, 0),
    "defect": (lists.texts_of, None),
}
"""How each field is read, and what it is by default; in the order of the constructor of messages."""


def _read_messages(arrays: Arrays, count: int, *, text_key: bool) -> Sequence[Message]:
    """The messages of `count` rows. Raises ValueError for values that cannot be read."""
    arrays = {name: array for name, array in arrays.items() if array.null_count < count}
    native = native_messages(
        {name: arrays[name] for name in (*_READERS, "key_is_text") if name in arrays}, count, text_key=text_key
    )
    if native is not None:
        return native
    fields: dict[str, Iterable[Any]] = {
        name: read(arrays[name]) if name in arrays else repeat(default, count)
        for name, (read, default) in _READERS.items()
        if name != "key"
    }
    fields["key"] = _read_keys(arrays, count, text_key=text_key)
    return list(map(Message, *(fields[name] for name in _READERS)))


def _read_keys(arrays: Arrays, count: int, *, text_key: bool) -> Iterable[str | bytes | None]:
    """The keys; `text_key` says what they are where no column does."""
    if (keys := arrays.get("key")) is None:
        return repeat(None, count)
    if "key_is_text" not in arrays:
        return lists.texts_of(keys) if text_key else lists.values_of(keys)
    flags = pc.fill_null(arrays["key_is_text"], text_key)
    return [
        key.decode("utf-8", "surrogatepass") if is_text and key is not None else key
        for key, is_text in zip(keys.to_pylist(), flags.to_pylist(), strict=True)
    ]


def _cut(messages: Sequence[Message], arrays: Arrays) -> list[SourceRun]:
    """The messages as runs. Raises ValueError for a text that is no source."""
    sizes = pc.binary_length(arrays["payload"])
    runs, begin = [], 0
    for source, end in _source_runs(arrays, len(messages)):
        partition, is_part = (NO_SOURCE, False) if source is None else parse_source(source)
        run = messages[begin:end]
        first, last = run[0].position, run[-1].position
        batch = Batch(
            partition,
            run,
            count=len(run),
            size=pc.sum(sizes.slice(begin, end - begin)).as_py() or 0,
            first=first,
            next=(*last[:-1], last[-1] + 1) if last else (),
        )
        runs.append(SourceRun(batch, begin, is_part))
        begin = end
    return runs


def _source_runs(arrays: Arrays, count: int) -> list[tuple[str | None, int]]:
    """Each source with the row behind its run; None for rows that lack a source or a position."""
    source, position = arrays.get("source"), arrays.get("position")
    if not count or source is None or position is None:
        return [(None, count)] if count else []
    if position.null_count:
        source = pc.if_else(position.is_valid(), source, pa.scalar(None, source.type))
    encoded = pc.run_end_encode(source)
    return list(zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True))
