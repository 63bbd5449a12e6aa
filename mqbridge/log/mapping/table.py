"""Field table of the embedded log, whose records have a field for every field of a message."""

from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message

_SPECIAL_RULES = {
    "position": (RECOMPUTED, "the offset, which each partition counts from 0"),
    "delivery_count": (NATIVE, "as the source counted; the log does not count deliveries"),
    "origin": (NATIVE, "the new origin if the outbound stamps one; else the message's own"),
    "hops": (NATIVE, "one more than those of the message if the outbound stamps a new origin"),
    "defect": (DROPPED, "a message that could not be decoded is never delivered"),
}

# Each field of a record has the name of its message field.
TABLE = FieldTable(
    "log",
    "embedded log",
    tuple(FieldRule(field, field, *_SPECIAL_RULES.get(field, (NATIVE, "as it is"))) for field in Message.__slots__),
)
