"""From record batches back to messages.

Columns may be missing, but for the payload; what is not there is as a message has it by default. Ordinary rows become lazy
messages: their properties stay UTF-8, which the encoders of all systems take as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mqbridge.errors import ConfigError
from mqbridge.mapping.lazy_properties import NO_NAMES, LazyMessage
from mqbridge.message import NOWHERE, Batch, Message, Position
from mqbridge.spark.arrow import lists
from mqbridge.spark.arrow.columns import Columns
from mqbridge.spark.property_blob import SplitProperties
from mqbridge.spark.schema import parse_source

Arrays = dict[str, pa.Array]


class RowMessage(LazyMessage):
    """A message of a row with a payload, a position, and a text key or none; without ordering key, delivery time and defect."""

    __slots__ = ("attributes", "hops", "origin")
    origin: str | None  # type: ignore[assignment]  # not the constant that other lazy messages have

    def __init__(
        self,
        payload: bytes,
        properties: SplitProperties,
        key: str | None,
        keys: tuple[str, ...],
        msg_type: str | None,
        attributes: bytes | None,
        event_time: int | None,
        publish_time: int | None,
        delivery_count: int,
        position: Position,
        origin: str | None,
        hops: int,
    ) -> None:
        self.payload = payload
        self.property_names, self.values = properties
        self.lengths = None
        self.key = key
        self.keys = keys
        self.msg_type = msg_type
        self.attributes = attributes
        self.event_time = event_time
        self.publish_time = publish_time
        self.delivery_count = delivery_count
        self.position = position
        self.origin = origin
        self.hops = hops


@dataclass(frozen=True, slots=True)
class SourceRun:
    """Consecutive rows of one source partition.

    batch      their messages; of NOWHERE when the rows have no source or no position
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

_NEVER_LAZY = ("ordering_key", "deliver_at", "defect")
"""What only plain messages have."""


def _read_messages(arrays: Arrays, count: int, *, text_key: bool) -> list[Message]:
    """The messages of `count` rows, all lazy or all plain. Raises ValueError for values that cannot be read."""
    arrays = {name: array for name, array in arrays.items() if array.null_count < count}
    fields: dict[str, Iterable[Any]] = {}
    for name, (read, default) in _READERS.items():
        if name not in ("key", "properties"):
            fields[name] = read(arrays[name]) if name in arrays else repeat(default, count)
    fields["key"], only_texts = _read_keys(arrays, count, text_key=text_key)
    splits = _split_properties(arrays, count) if only_texts and _may_be_lazy(arrays) else None
    if splits is not None:
        fields["properties"] = splits
        return list(map(RowMessage, *(fields[name] for name in _READERS if name not in _NEVER_LAZY)))
    fields["properties"] = lists.properties_of(arrays["properties"]) if "properties" in arrays else repeat((), count)
    return list(map(Message, *(fields[name] for name in _READERS)))


def _may_be_lazy(arrays: Arrays) -> bool:
    """Whether all rows are ordinary, as far as keys and properties do not matter."""
    if arrays.keys() & _NEVER_LAZY or not arrays.keys() >= {"payload", "position"}:
        return False
    if arrays["payload"].null_count or not pc.min(pc.list_value_length(arrays["position"])).as_py():
        return False
    return "attributes" not in arrays or lists.is_all_utf8(arrays["attributes"])


def _split_properties(arrays: Arrays, count: int) -> Iterable[SplitProperties] | None:
    return lists.split_properties_of(arrays["properties"]) if "properties" in arrays else repeat((NO_NAMES, ()), count)


def _read_keys(arrays: Arrays, count: int, *, text_key: bool) -> tuple[Iterable[str | bytes | None], bool]:
    """The keys, and whether all are texts; `text_key` says what they are where no column does."""
    if (keys := arrays.get("key")) is None:
        return repeat(None, count), True
    flags = pc.fill_null(arrays["key_is_text"], text_key) if "key_is_text" in arrays else None
    if text_key if flags is None else pc.all(pc.or_(flags, keys.is_null())).as_py():
        return lists.texts_of(keys), True
    if flags is None:
        return lists.values_of(keys), False
    return [
        key.decode("utf-8", "surrogatepass") if is_text and key is not None else key
        for key, is_text in zip(keys.to_pylist(), flags.to_pylist(), strict=True)
    ], False


def _cut(messages: list[Message], arrays: Arrays) -> list[SourceRun]:
    """The messages as runs. Raises ValueError for a text that is no source."""
    sizes = pc.binary_length(arrays["payload"])
    runs, begin = [], 0
    for source, end in _source_runs(arrays, len(messages)):
        partition, is_part = (NOWHERE, False) if source is None else parse_source(source)
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
