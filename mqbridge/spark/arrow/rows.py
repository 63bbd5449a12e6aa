"""Converts batches of messages to record batches.

The compiled module turns the messages that it decoded into buffers. For other messages, one Arrow call per column converts a
list: that takes half the time of building the buffers in Python. Columns with one value per source partition are built once and
then sliced to the number of rows.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from mqbridge.message import Batch, Message, Partition
from mqbridge.native import is_native
from mqbridge.spark.arrow.arrays import bytes_array, int_array, properties_array, text_array, text_lists_array, time_array
from mqbridge.spark.arrow.native_columns import native_columns
from mqbridge.spark.property_blob import encode_properties
from mqbridge.spark.schema import COLUMNS, format_source, message_schema

MAX_ROWS = 8192
"""Maximum number of rows of a record batch from `build_slices`."""
MAX_BYTES = 8 << 20
"""Approximate maximum size of a record batch from `build_slices`: Spark copies it as a whole. A single message may be larger."""


class RowBuilder:
    """Builds the rows of batches. Each task has its own builder, which caches the columns of the current partition.

    With `binary_properties`, each row has its properties as one blob instead of a map. `cluster` and `is_part` are those of
    `format_source`: the identity of the cluster, and whether the task reads only a part of the partition's range.

    Every record batch has exactly the schema `schema`, because Spark rejects any other.
    """

    def __init__(self, *, cluster: str | None = None, binary_properties: bool = False, is_part: bool = False) -> None:
        spark_schema = message_schema(binary_properties=binary_properties)
        self.schema: pa.Schema = to_arrow_schema(spark_schema, timezone="UTC")
        self._cluster, self._binary_properties, self._is_part = cluster, binary_properties, is_part
        self._partition: Partition | None = None
        """The partition of the last batch; None before the first batch."""
        self._partition_columns: dict[str, pa.Array] = {}
        """Columns of `_partition` that have one value for all rows, by name. They have MAX_ROWS rows or more."""

    def build(self, batch: Batch) -> pa.RecordBatch:
        """Return all messages of a batch as one record batch, however large it is."""
        messages = batch.messages
        if is_native(messages):
            columns = native_columns(messages, self.schema, binary_properties=self._binary_properties)
        else:
            columns = self._message_columns(messages)
        columns |= self._slice_partition_columns(batch.partition, len(messages))
        return pa.RecordBatch.from_arrays([columns[name] for name in COLUMNS], schema=self.schema)

    def build_slices(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a batch as record batches of at most MAX_ROWS and about MAX_BYTES: slices of one, not copies."""
        rows = self.build(batch)
        slice_rows = max(1, min(MAX_ROWS, MAX_BYTES * len(rows) // max(rows.nbytes, 1)))
        for begin in range(0, len(rows), slice_rows):
            yield rows.slice(begin, slice_rows)

    def _message_columns(self, messages: Sequence[Message]) -> dict[str, pa.Array]:
        keys = [message.key for message in messages]
        return {
            "payload": bytes_array([message.payload for message in messages]),
            "key": bytes_array(keys),
            "key_is_text": pa.array([None if key is None else isinstance(key, str) for key in keys], pa.bool_()),
            "ordering_key": bytes_array([message.ordering_key for message in messages]),
            "keys": text_lists_array([message.keys for message in messages], self._type_of("keys")),
            "msg_type": text_array([message.msg_type for message in messages]),
            "attributes": bytes_array([message.attributes for message in messages]),
            "properties": self._properties(messages),
            "event_time": time_array([message.event_time for message in messages]),
            "publish_time": time_array([message.publish_time for message in messages]),
            "deliver_at": time_array([message.deliver_at for message in messages]),
            "delivery_count": int_array([message.delivery_count for message in messages]),
            "position": pa.array([message.position for message in messages], self._type_of("position")),
            "origin": text_array([message.origin for message in messages]),
            "hops": int_array([message.hops for message in messages]),
            "defect": text_array([message.defect for message in messages]),
        }

    def _properties(self, messages: Sequence[Message]) -> pa.Array:
        return bytes_array(encode_properties(messages)) if self._binary_properties else properties_array(messages)

    def _type_of(self, column: str) -> pa.DataType:
        return self.schema.field(column).type

    def _slice_partition_columns(self, partition: Partition, count: int) -> dict[str, pa.Array]:
        """Return the columns that have one value for all rows of a partition, as slices of longer cached columns."""
        if partition != self._partition or count > len(self._partition_columns["source"]):
            self._partition = partition
            values = {
                "topic": partition.topic,
                "partition": partition.index,
                "source": format_source(partition, self._cluster, is_part=self._is_part),
            }
            rows = max(count, MAX_ROWS)
            self._partition_columns = {
                name: pa.repeat(pa.scalar(value, self._type_of(name)), rows) for name, value in values.items()
            }
        return {name: array.slice(0, count) for name, array in self._partition_columns.items()}
