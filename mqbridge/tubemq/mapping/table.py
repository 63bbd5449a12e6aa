"""Field table: how the fields and attributes of TubeMQ messages are mapped, and which attributes carry fields of other systems.

Fields of a send request and of a fetched message have their protobuf names; an attribute is listed as `attribute NAME`. A rule
with `own=True` is only for values that come from TubeMQ. A pack is the messages that one get request returns.
"""

from collections.abc import Iterable

from mqbridge.mapping.field_table import (
    ACTED_ON,
    CARRIED,
    DROPPED,
    IF_SENT,
    KEPT,
    LEFT_OUT,
    NATIVE,
    RECOMPUTED,
    SET,
    FieldRule,
    FieldTable,
    Returned,
)
from mqbridge.message import MSG_TIME, MSG_TYPE

BLOCK = "mqbridge.tubemq.block"
"""Property that holds the flag and the attribute string that a listener's SDK sent, see `sent_block`."""
DEFECT = "mqbridge.tubemq.defect"
"""Attribute of what a listener's SDK gets: why the body is raw."""

REQUEST = (
    FieldRule("SendMessageRequestP2B.clientId", None, RECOMPUTED, "the sending client"),
    FieldRule(
        "SendMessageRequestP2B.topicName", None, RECOMPUTED, "known from the batch's partition; the route names the target"
    ),
    FieldRule("SendMessageRequestP2B.partitionId", None, RECOMPUTED, "the route chooses the target partition"),
    FieldRule("SendMessageRequestP2B.data", "payload", NATIVE, "attribute block and body: see TransferedMessage.payLoadData"),
    FieldRule("SendMessageRequestP2B.flag", None, RECOMPUTED, "tells if there is an attribute block"),
    FieldRule("SendMessageRequestP2B.checkSum", None, RECOMPUTED, "of the bytes that are sent"),
    FieldRule("SendMessageRequestP2B.sentAddr", None, RECOMPUTED, "the sending client"),
    FieldRule(
        "SendMessageRequestP2B.msgType", "msg_type", NATIVE, "Brokers filter by it; consumers read the type from the attribute"
    ),
    FieldRule("SendMessageRequestP2B.msgTime", "event_time", NATIVE, "the minute, for the Broker's statistics"),
    FieldRule("SendMessageRequestP2B.authInfo", None, DROPPED, "the sender's credentials"),
)
"""Fields of a send request."""
TRANSFERED = (
    FieldRule("TransferedMessage.messageId", None, RECOMPUTED, "the Broker numbers the messages it stores"),
    FieldRule("TransferedMessage.checkSum", None, RECOMPUTED, "checked when read (a wrong one is a defect)"),
    FieldRule("TransferedMessage.payLoadData", "payload", NATIVE, "the body, byte for byte, behind the attribute string"),
    FieldRule(
        "TransferedMessage.flag", None, RECOMPUTED, "tells if there is an attribute block; if set without one, all data is body"
    ),
)
"""Fields of a fetched message."""
ATTRIBUTES = (
    FieldRule("attribute string", "attributes", NATIVE, "byte for byte; an item that is not a pair exists only in it"),
    FieldRule("attributes", "properties", NATIVE, "each `key=value` pair of the string, in order, repeats kept"),
    FieldRule(f"attribute {MSG_TYPE}", "msg_type", NATIVE, "stays a property of this name too"),
    FieldRule(
        f"attribute {MSG_TIME}", "event_time", NATIVE, "a minute in the cluster's `time_zone`; stays a property of this name too"
    ),
    FieldRule(
        "attribute $groupName$",
        "properties",
        NATIVE,
        "names the group in the system topic of offsets; read as a property like any other",
        own=True,
    ),
    FieldRule(
        "offset of the pack, index in it", "position", RECOMPUTED, "the position in the source; each partition counts its own"
    ),
)
"""The attribute string, its pairs, and the position."""
RESERVED = (
    FieldRule("mqbridge.key", "key", CARRIED, "text"),
    FieldRule("mqbridge.key.b64", "key", CARRIED, "a binary key"),
    FieldRule("mqbridge.ordering_key", "ordering_key", CARRIED, "base64"),
    FieldRule("mqbridge.keys", "keys", CARRIED, "percent-encoded, joined by commas"),
    FieldRule("mqbridge.deliver_at", "deliver_at", CARRIED, "TubeMQ delivers at once"),
    FieldRule("mqbridge.event_time", "event_time", CARRIED, "the exact time, if it is not a whole minute"),
    FieldRule("mqbridge.null", "payload", CARRIED, "a tombstone; valid only while the body is empty"),
    FieldRule(
        "mqbridge.without", "msg_type", CARRIED, "the message has no type, although a user's pair looks like one", own=True
    ),
    FieldRule("mqbridge.attributes", "attributes", CARRIED, "the original string, if a route has edited the message"),
    FieldRule("mqbridge.attributes.b64", "attributes", CARRIED, "the original string, if it is not UTF-8"),
    FieldRule("mqbridge.origin", "origin", CARRIED, "cluster, topic, partition and position of the source"),
    FieldRule("mqbridge.hops", "hops", CARRIED, "from the second gateway on"),
    FieldRule("mqbridge.u.*", "properties", CARRIED, "a user's pair with one of these names"),
    FieldRule(
        BLOCK,
        "properties",
        CARRIED,
        "in other systems: the flag and the attribute string that an SDK sent to a listener, if other fields cannot tell them",
        own=True,
    ),
    FieldRule(DEFECT, "properties", CARRIED, "at a listener: why the message cannot be read; its body is raw", own=True),
    FieldRule(
        "mqbridge.v",
        None,
        CARRIED,
        "marks a string that a gateway built: `%`, `,`, `=` and bytes that are not UTF-8 in keys and values are percent-encoded",
    ),
)
"""Reserved pairs, which carry message fields that TubeMQ has no field for."""
NOT_READABLE = (
    FieldRule("", "publish_time", RECOMPUTED, "the Broker stores it, but does not send it to consumers"),
    FieldRule("", "delivery_count", RECOMPUTED, "TubeMQ does not count deliveries"),
    FieldRule("", "defect", DROPPED, "unreadable messages are never delivered; their dead letters are raw"),
)
"""Message fields that a TubeMQ message has no value for; so the native name is empty."""

_NOT_KEPT: dict[str, Returned] = {
    **dict.fromkeys(("SendMessageRequestP2B.topicName", "SendMessageRequestP2B.partitionId"), ACTED_ON),
    "SendMessageRequestP2B.checkSum": ACTED_ON,
    **dict.fromkeys((f"SendMessageRequestP2B.{name}" for name in ("clientId", "sentAddr", "authInfo")), LEFT_OUT),
    **dict.fromkeys((f"SendMessageRequestP2B.{name}" for name in ("msgType", "msgTime")), LEFT_OUT),
    **dict.fromkeys(("TransferedMessage.messageId", "TransferedMessage.checkSum", "offset of the pack, index in it"), SET),
}
"""The fields that SDKs do not simply get back from a listener."""


def _for_listeners(rules: Iterable[FieldRule], default: Returned) -> tuple[FieldRule, ...]:
    """Return the rules with what SDKs get from a listener: the `default`, unless _NOT_KEPT says something else."""
    return tuple(rule._replace(listener=_NOT_KEPT.get(rule.native, default)) if rule.native else rule for rule in rules)


TABLE = FieldTable(
    "tubemq",
    "TubeMQ",
    (*_for_listeners((*REQUEST, *TRANSFERED, *ATTRIBUTES), KEPT), *_for_listeners(RESERVED, IF_SENT), *NOT_READABLE),
    listener="Where the backing stores messages of TubeMQ (the embedded log), they pass as they are. Elsewhere"
    " `mqbridge.attributes` carries the attribute string, byte for byte, and its pairs are also properties. A string with items"
    f" of a gateway, and a flag that does not follow from the data, are in the property `{BLOCK}`. A message that a route has"
    " edited, or that a client of another system has sent, is given to SDKs with an attribute string of its own fields:"
    f" `{MSG_TYPE}`, `{MSG_TIME}` (in UTC) and user properties, percent-encoded.",
)
