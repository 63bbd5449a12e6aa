"""The columns of messages, which the source produces and the sink reads.

The column `source` identifies the partition that a row was read from. A sink needs `source` and `position` to write the origin of
a message, and to find the messages that an earlier attempt stored. Users may change `topic` and `partition` to choose where a row
is written.
"""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqbridge.message import Partition

PART_MARK = "part"
"""Last field of `source` if a task reads only a part of the partition's range: rows of two parts have no order between them."""

_TYPES: dict[str, DataType] = {
    "payload": BinaryType(),
    "key": BinaryType(),
    "key_is_text": BooleanType(),
    "ordering_key": BinaryType(),
    "keys": ArrayType(StringType(), containsNull=False),
    "msg_type": StringType(),
    "attributes": BinaryType(),
    "properties": MapType(StringType(), StringType(), valueContainsNull=False),
    "event_time": TimestampType(),
    "publish_time": TimestampType(),
    "deliver_at": TimestampType(),
    "delivery_count": IntegerType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "position": ArrayType(LongType(), containsNull=False),
    "source": StringType(),
    "origin": StringType(),
    "hops": IntegerType(),
    "defect": StringType(),
}
COLUMNS = tuple(_TYPES)


def message_schema(*, binary_properties: bool = False) -> StructType:
    """Return the schema of the source.

    `binary_properties`: each row has its properties as one blob (see `mqbridge.spark.property_blob`). False: as a map.
    """
    types = dict(_TYPES)
    if binary_properties:
        types["properties"] = BinaryType()
    return StructType([StructField(name, data_type, nullable=True) for name, data_type in types.items()])


def format_source(partition: Partition, *, is_part: bool = False) -> str:
    """Return `cluster|topic|name|index`, with `%` and `|` percent-encoded in names; with `is_part`, `|part` follows."""
    names = (partition.cluster, partition.topic, partition.name)
    parts = [name.replace("%", "%25").replace("|", "%7C") for name in names] + [str(partition.index)]
    return "|".join([*parts, PART_MARK] if is_part else parts)


def parse_source(source: str) -> tuple[Partition, bool]:
    """Return the partition of a `source`, and whether PART_MARK follows. Raises ValueError for any other text."""
    fields, marks = source.split("|")[:4], source.split("|")[4:]
    if len(fields) < 4 or marks not in ([], [PART_MARK]):
        raise ValueError(f"{source!r} is not a value of column source, which looks like 'cluster|topic|partition|0'")
    cluster, topic, name = (part.replace("%7C", "|").replace("%25", "%") for part in fields[:3])
    return Partition(cluster, topic, name, int(fields[3])), bool(marks)
