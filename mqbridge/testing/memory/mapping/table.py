"""Field table of the memory system, which stores the message object itself."""

from mqbridge.mapping.field_table import DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import Message

_SPECIAL_RULES = {
    "position": (RECOMPUTED, "the offset in the partition"),
    "origin": (NATIVE, "the new origin that the outbound stamps; else the message's own"),
    "defect": (DROPPED, "a message that could not be decoded is never delivered"),
}

TABLE = FieldTable(
    system="memory",
    title="memory",
    rules=tuple(FieldRule(slot, slot, *_SPECIAL_RULES.get(slot, (NATIVE, "as it is"))) for slot in Message.__slots__),
)
