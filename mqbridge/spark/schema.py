"""The columns of messages, which the source produces and the sink reads.

The column `source` identifies the partition that a row was read from. Its cluster has a name and, unless it is the same text, an
identity, because two configurations may give one name to two clusters. A sink needs `source` and `position` to write the origin
of a message, and to find the messages that an earlier attempt stored. Users may change `topic` and `partition` to choose where a
row is written.
"""

from typing import NamedTuple

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
_IDENTITY_MARK = "at="
"""Begins the field of `source` with the identity of the cluster."""


class RowSource(NamedTuple):
    """What the column `source` contains.

    cluster  identity of the partition's cluster (`ClusterRef.identity`); "" if it is the cluster's name
    is_part  PART_MARK follows
    """

    partition: Partition
    cluster: str = ""
    is_part: bool = False


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


def format_source(partition: Partition, cluster: str | None = None, *, is_part: bool = False) -> str:
    """Return `cluster|topic|name|index`, with `%` and `|` percent-encoded in texts.

    `cluster` is the cluster's identity: `|at=IDENTITY` follows if it is not the cluster's name. With `is_part`, `|part` follows.
    """
    fields = [*map(_escape, (partition.cluster, partition.topic, partition.name)), str(partition.index)]
    if cluster is not None and cluster != partition.cluster:
        fields.append(_IDENTITY_MARK + _escape(cluster))
    return "|".join([*fields, PART_MARK] if is_part else fields)


def parse_source(source: str) -> RowSource:
    """Parse a value of the column `source`. Raises ValueError for any other text."""
    fields, marks = source.split("|")[:4], source.split("|")[4:]
    if is_part := marks[-1:] == [PART_MARK]:
        marks.pop()
    if len(fields) < 4 or len(marks) > 1 or not all(mark.startswith(_IDENTITY_MARK) for mark in marks):
        raise ValueError(f"{source!r} is not a value of column source, which looks like 'cluster|topic|partition|0'")
    cluster, topic, name = map(_unescape, fields[:3])
    identity = _unescape(marks[0].removeprefix(_IDENTITY_MARK)) if marks else ""
    return RowSource(Partition(cluster, topic, name, int(fields[3])), identity, is_part)


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("|", "%7C")


def _unescape(text: str) -> str:
    return text.replace("%7C", "|").replace("%25", "%")
