"""The columns of messages: what the source yields and the sink understands.

`source` is the identity of the source partition and stays with a row wherever Spark moves it: with `position` it is what origins
and the resumption of a sink stand on. `topic` and `partition` are for people, and may be changed to say where a row is to go.
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
"""Behind the source of rows whose task reads only a part of the partition's range: such rows are in no order with the others."""

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
    """The source's schema; with `binary_properties` as one value per message (`mqbridge.spark.property_blob`)."""
    types = dict(_TYPES)
    if binary_properties:
        types["properties"] = BinaryType()
    return StructType([StructField(name, kind, nullable=True) for name, kind in types.items()])


def format_source(partition: Partition, *, is_part: bool = False) -> str:
    """`cluster|topic|name|index`, in which the names are percent-escaped as they are in origins."""
    names = (partition.cluster, partition.topic, partition.name)
    parts = [name.replace("%", "%25").replace("|", "%7C") for name in names] + [str(partition.index)]
    return "|".join([*parts, PART_MARK] if is_part else parts)


def parse_source(source: str) -> tuple[Partition, bool]:
    """The partition, and whether its rows are of a part of a range. Raises ValueError when the text is no source."""
    names, mark = source.split("|")[:4], source.split("|")[4:]
    if len(names) < 4 or mark not in ([], [PART_MARK]):
        raise ValueError(f"{source!r} is not the source of a row")
    cluster, topic, name = (part.replace("%7C", "|").replace("%25", "%") for part in names[:3])
    return Partition(cluster, topic, name, int(names[3])), bool(mark)
