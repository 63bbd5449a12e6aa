"""What becomes of the fields of a TubeMQ message, of the system's own attributes, and of what other systems say.

The fields of a send request and of a message that was fetched are the protocol's; attributes are written `attribute NAME`.
"""

from mqbridge.mapping.field_table import CARRIED, DROPPED, NATIVE, RECOMPUTED, FieldRule, FieldTable
from mqbridge.message import MSG_TIME, MSG_TYPE

REQUEST = (
    FieldRule("SendMessageRequestP2B.clientId", None, RECOMPUTED, "who sends"),
    FieldRule("SendMessageRequestP2B.topicName", None, RECOMPUTED, "the batch's partition says it; the route names the target's"),
    FieldRule("SendMessageRequestP2B.partitionId", None, RECOMPUTED, "the route chooses the target's"),
    FieldRule("SendMessageRequestP2B.data", "payload", NATIVE, "attribute block and body: see TransferedMessage.payLoadData"),
    FieldRule("SendMessageRequestP2B.flag", None, RECOMPUTED, "whether there is an attribute block"),
    FieldRule("SendMessageRequestP2B.checkSum", None, RECOMPUTED, "of the bytes that are sent"),
    FieldRule("SendMessageRequestP2B.sentAddr", None, RECOMPUTED, "who sends"),
    FieldRule("SendMessageRequestP2B.msgType", "msg_type", NATIVE, "what Brokers filter by; consumers read the attribute again"),
    FieldRule("SendMessageRequestP2B.msgTime", "event_time", NATIVE, "the minute, for the Broker's statistics"),
    FieldRule("SendMessageRequestP2B.authInfo", None, DROPPED, "the sender's credentials"),
)
TRANSFERED = (
    FieldRule("TransferedMessage.messageId", None, RECOMPUTED, "the Broker numbers what it stores"),
    FieldRule("TransferedMessage.checkSum", None, RECOMPUTED, "checked when read (a wrong one is a defect)"),
    FieldRule("TransferedMessage.payLoadData", "payload", NATIVE, "the body, byte for byte, behind the attribute string"),
    FieldRule(
        "TransferedMessage.flag", None, RECOMPUTED, "whether there is an attribute block; set without one, all of it is the body"
    ),
)
ATTRIBUTES = (
    FieldRule("attribute string", "attributes", NATIVE, "byte for byte; an item that is no pair lives in it alone"),
    FieldRule("attributes", "properties", NATIVE, "each `key=value` pair of the string, in order, repeats kept"),
    FieldRule(f"attribute {MSG_TYPE}", "msg_type", NATIVE, "stays a property of this name too"),
    FieldRule(
        f"attribute {MSG_TIME}", "event_time", NATIVE, "a minute in the cluster's `time_zone`; stays a property of this name too"
    ),
    FieldRule(
        "attribute $groupName$", "properties", NATIVE, "of the system topic of offsets; a property like any other", own=True
    ),
    FieldRule("offset of the pack, index in it", "position", RECOMPUTED, "where it lies; every partition counts its own"),
)
OURS = (
    FieldRule("mqbridge.key", "key", CARRIED, "text"),
    FieldRule("mqbridge.key.b64", "key", CARRIED, "a binary key"),
    FieldRule("mqbridge.ordering_key", "ordering_key", CARRIED, "base64"),
    FieldRule("mqbridge.keys", "keys", CARRIED, "percent-encoded, joined by commas"),
    FieldRule("mqbridge.deliver_at", "deliver_at", CARRIED, "TubeMQ delivers at once"),
    FieldRule("mqbridge.event_time", "event_time", CARRIED, "exact, where the minute is not all there is"),
    FieldRule("mqbridge.null", "payload", CARRIED, "a tombstone; believed while the body is empty"),
    FieldRule("mqbridge.without", "msg_type", CARRIED, "a pair of the user's looks like a type, and is none", own=True),
    FieldRule("mqbridge.attributes", "attributes", CARRIED, "the string as it was, when a route has edited what it says"),
    FieldRule("mqbridge.attributes.b64", "attributes", CARRIED, "where it is not UTF-8"),
    FieldRule("mqbridge.origin", "origin", CARRIED, "cluster, topic, partition and position of the source"),
    FieldRule("mqbridge.hops", "hops", CARRIED, "from the second gateway on"),
    FieldRule("mqbridge.u.*", "properties", CARRIED, "a user's pair whose name is one of these"),
    FieldRule(
        "mqbridge.v",
        None,
        CARRIED,
        "a gateway built the string, so `%`, `,` and `=` inside of keys and values are percent-encoded",
    ),
)
NOWHERE = (
    FieldRule("", "publish_time", RECOMPUTED, "the Broker notes it, and tells no consumer"),
    FieldRule("", "delivery_count", RECOMPUTED, "TubeMQ does not count deliveries"),
    FieldRule("", "defect", DROPPED, "what could not be read is never delivered"),
)

TABLE = FieldTable("tubemq", "TubeMQ", (*REQUEST, *TRANSFERED, *ATTRIBUTES, *OURS, *NOWHERE))
