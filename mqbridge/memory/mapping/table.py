"""Field table of the memory system, which stores the message object itself."""

from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message

_SPECIAL_RULES = {
    "position": (RECOMPUTED, "its place in the list"),
    "origin": (NATIVE, "what the outbound stamps, else the message's own"),
    "defect": (DROPPED, "what could not be read is never delivered"),
}

TABLE = FieldTable(
    "memory",
    "memory",
    tuple(FieldRule(slot, slot, *_SPECIAL_RULES.get(slot, (NATIVE, "as it is"))) for slot in Message.__slots__),
)
