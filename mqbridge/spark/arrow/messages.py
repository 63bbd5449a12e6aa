"""Converts record batches back to messages.

All columns except the payload may be missing: their fields then have the defaults of `Message`. The compiled module
converts the rows, except for those that only the Python code can read, to native messages: objects of its own class, which the
encoders of all systems accept without conversion.
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
from mqbridge.spark.arrow.columns import MessageColumns
from mqbridge.spark.arrow.native_columns import native_messages
from mqbridge.spark.schema import RowSource, parse_source

Arrays = dict[str, pa.Array]
"""The message columns of a record batch by name, in their canonical types."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Consecutive rows of one source partition.

    batch      the messages of these rows; its partition is NO_SOURCE if the rows have no source or no position
    first_row  index of the first of these rows in the record batch
    is_part    whether other tasks of the same Spark batch read further rows of this partition
    cluster    identity of the partition's cluster, see `RowSource.cluster`
    """

    batch: Batch
    first_row: int
    is_part: bool
    cluster: str


class MessageDecoder:
    """Converts record batches of one schema to messages. Raises ConfigError for columns that cannot be read."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = MessageColumns(schema)

    def read_runs(self, rows: pa.RecordBatch) -> list[SourceRun]:
        """Return the runs of rows with the same `source`, in order. Raises ConfigError for values that cannot be read."""
        arrays = self._columns.arrays(rows)
        try:
            messages = _read_messages(arrays, len(rows), keys_are_text=self._columns.is_key_text_by_default)
            return _split_at_sources(messages, arrays)
        except ValueError as error:
            raise ConfigError(f"rows cannot be written: {error}") from error


def read_batches(rows: pa.RecordBatch) -> list[Batch]:
    """Return one batch per run of rows with the same `source`. Raises ConfigError for unreadable columns or values."""
    return [run.batch for run in MessageDecoder(rows.schema).read_runs(rows)]


_FIELD_READERS: dict[str, tuple[Callable[[pa.Array], Sequence[Any]], Any]] = {
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
"""The function that reads each field, and the field's default. The order is that of the parameters of `Message`."""


def _read_messages(arrays: Arrays, count: int, *, keys_are_text: bool) -> Sequence[Message]:
    """Return the messages of `count` rows. Raises ValueError for values that cannot be read.

    `keys_are_text`: the keys of rows without a value in the column `key_is_text` are text, otherwise bytes.
    """
    # A column that is NULL in all rows is treated as missing.
    arrays = {name: array for name, array in arrays.items() if array.null_count < count}
    native = native_messages(
        {name: arrays[name] for name in (*_FIELD_READERS, "key_is_text") if name in arrays}, count, keys_are_text=keys_are_text
    )
    if native is not None:
        return native
    fields: dict[str, Iterable[Any]] = {
        name: read(arrays[name]) if name in arrays else repeat(default, count)
        for name, (read, default) in _FIELD_READERS.items()
        if name != "key"
    }
    fields["key"] = _read_keys(arrays, count, keys_are_text=keys_are_text)
    return list(map(Message, *(fields[name] for name in _FIELD_READERS)))


def _read_keys(arrays: Arrays, count: int, *, keys_are_text: bool) -> Iterable[str | bytes | None]:
    """Return the keys of `count` rows; `keys_are_text` as in `_read_messages`."""
    if (keys := arrays.get("key")) is None:
        return repeat(None, count)
    if "key_is_text" not in arrays:
        return lists.texts_of(keys) if keys_are_text else lists.values_of(keys)
    is_text_flags = pc.fill_null(arrays["key_is_text"], keys_are_text)
    return [
        key.decode("utf-8", "surrogatepass") if is_text and key is not None else key
        for key, is_text in zip(keys.to_pylist(), is_text_flags.to_pylist(), strict=True)
    ]


def _split_at_sources(messages: Sequence[Message], arrays: Arrays) -> list[SourceRun]:
    """Split the messages into runs of the same source. Raises ValueError for an invalid `source`.

    The size of a batch counts only payloads. Its next position is one after that of its last message.
    """
    sizes = pc.binary_length(arrays["payload"])
    runs, begin = [], 0
    for source, end in _find_source_ends(arrays, len(messages)):
        row_source = RowSource(NO_SOURCE) if source is None else parse_source(source)
        run = messages[begin:end]
        first, last = run[0].position, run[-1].position
        batch = Batch(
            row_source.partition,
            run,
            count=len(run),
            size=pc.sum(sizes.slice(begin, end - begin)).as_py() or 0,
            first=first,
            next=(*last[:-1], last[-1] + 1) if last else (),
        )
        runs.append(SourceRun(batch, begin, row_source.is_part, row_source.cluster))
        begin = end
    return runs


def _find_source_ends(arrays: Arrays, count: int) -> list[tuple[str | None, int]]:
    """Return for each run its source and the index after its last row. Rows without source or position have the source None."""
    source, position = arrays.get("source"), arrays.get("position")
    if not count or source is None or position is None:
        return [(None, count)] if count else []
    if position.null_count:
        source = pc.if_else(position.is_valid(), source, pa.scalar(None, source.type))
    encoded = pc.run_end_encode(source)
    return list(zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True))
