"""What becomes of the fields of a message in memory: the object itself is kept."""

from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message

_OTHERS = {
    "position": (RECOMPUTED, "its place in the list"),
    "origin": (NATIVE, "what the outbound stamps, else the message's own"),
    "defect": (DROPPED, "what could not be read is never delivered"),
}

TABLE = FieldTable(
    "memory", "memory", tuple(FieldRule(slot, slot, *_OTHERS.get(slot, (NATIVE, "as it is"))) for slot in Message.__slots__)
)
