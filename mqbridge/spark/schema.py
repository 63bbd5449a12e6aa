"""The columns of messages, which the source produces and the sink reads.

`source` identifies the source partition, and stays with a row wherever Spark moves it. Origins and the resumption of a sink
depend on `source` and `position`. Users may change `topic` and `partition` to choose where a row is written.
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
"""Suffix of `source` if the task reads only a part of the partition's range. Such rows have no order relative to other parts."""

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
    """Return the schema of the source. `binary_properties`: the properties are one value, see `mqbridge.spark.property_blob`."""
    types = dict(_TYPES)
    if binary_properties:
        types["properties"] = BinaryType()
    return StructType([StructField(name, kind, nullable=True) for name, kind in types.items()])


def format_source(partition: Partition, *, is_part: bool = False) -> str:
    """Return `cluster|topic|name|index`, with the names percent-escaped as in origins."""
    names = (partition.cluster, partition.topic, partition.name)
    parts = [name.replace("%", "%25").replace("|", "%7C") for name in names] + [str(partition.index)]
    return "|".join([*parts, PART_MARK] if is_part else parts)


def parse_source(source: str) -> tuple[Partition, bool]:
    """Parse a `source` to its partition, and whether it has PART_MARK. Raises ValueError for any other text."""
    names, mark = source.split("|")[:4], source.split("|")[4:]
    if len(names) < 4 or mark not in ([], [PART_MARK]):
        raise ValueError(f"{source!r} is not the source of a row")
    cluster, topic, name = (part.replace("%7C", "|").replace("%25", "%") for part in names[:3])
    return Partition(cluster, topic, name, int(names[3])), bool(mark)
