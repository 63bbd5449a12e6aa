"""Field table of the embedded log: every field has its own place in the record."""

from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message

_SPECIAL_RULES = {
    "position": (RECOMPUTED, "the offset; every partition counts its own"),
    "delivery_count": (NATIVE, "as the source counted; the log does not count deliveries"),
    "origin": (NATIVE, "what the outbound stamps, else the message's own"),
    "hops": (NATIVE, "one more than the message's when the outbound stamps"),
    "defect": (DROPPED, "what could not be read is never delivered"),
}

TABLE = FieldTable(
    "log",
    "embedded log",
    tuple(FieldRule(slot, slot, *_SPECIAL_RULES.get(slot, (NATIVE, "as it is"))) for slot in Message.__slots__),
)
