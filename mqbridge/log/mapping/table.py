"""What becomes of the fields of a message in the embedded log, which says all of them natively."""

from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message

_OTHERS = {
    "position": (RECOMPUTED, "the offset; every partition counts its own"),
    "delivery_count": (NATIVE, "as the source counted; the log does not count deliveries"),
    "origin": (NATIVE, "what the outbound stamps, else the message's own"),
    "hops": (NATIVE, "one more than the message's when the outbound stamps"),
    "defect": (DROPPED, "what could not be read is never delivered"),
}

TABLE = FieldTable(
    "log", "embedded log", tuple(FieldRule(slot, slot, *_OTHERS.get(slot, (NATIVE, "as it is"))) for slot in Message.__slots__)
)
