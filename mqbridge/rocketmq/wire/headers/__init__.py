"""The custom headers of requests and answers: text by name on the wire, typed fields here.

A class says a header once, and reads and writes it: the client's out is the listener's in. A field without a default has to be
there; one that is None is not written. The name on the wire is the field's own in camel case, where `named` says no other.
Names are also found in another case (Go clients write `Topic` and `QueueId`).
"""

from mqbridge.rocketmq.wire.headers.admin import (
    BrokerHeader,
    ClusterHeader,
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    GroupConfigHeader,
    KvHeader,
    KvResult,
    QueryHeader,
    QueryResult,
    RegisterBrokerResult,
    RouteHeader,
    TopicHeader,
    ViewHeader,
)
from mqbridge.rocketmq.wire.headers.base import Header, named
from mqbridge.rocketmq.wire.headers.groups import (
    ConsumeDirectlyHeader,
    GroupHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    SendBackHeader,
    UnregisterHeader,
)
from mqbridge.rocketmq.wire.headers.offsets import (
    OffsetResult,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResult,
    UpdateOffsetHeader,
)
from mqbridge.rocketmq.wire.headers.pops import (
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResult,
    NotificationHeader,
    NotificationResult,
    PopHeader,
    PopResult,
)
from mqbridge.rocketmq.wire.headers.pulling import (
    PullFlag,
    PullHeader,
    PullResult,
)
from mqbridge.rocketmq.wire.headers.sending import (
    DEFAULT_TOPIC,
    RecallHeader,
    ReplyPushHeader,
    SendHeader,
    SendResult,
)
from mqbridge.rocketmq.wire.headers.transactions import (
    COMMIT,
    ROLLBACK,
    STATE_UNKNOWN,
    CheckTransactionHeader,
    EndTransactionHeader,
)

__all__ = [
    "COMMIT",
    "DEFAULT_TOPIC",
    "ROLLBACK",
    "STATE_UNKNOWN",
    "AckHeader",
    "BrokerHeader",
    "ChangeInvisibleHeader",
    "ChangeInvisibleResult",
    "CheckTransactionHeader",
    "ClusterHeader",
    "ConsumeDirectlyHeader",
    "ConsumeStatsHeader",
    "CreateTopicHeader",
    "DeleteGroupHeader",
    "EndTransactionHeader",
    "GroupConfigHeader",
    "GroupHeader",
    "Header",
    "KvHeader",
    "KvResult",
    "NotificationHeader",
    "NotificationResult",
    "OffsetResult",
    "PopHeader",
    "PopResult",
    "ProducerGroupHeader",
    "PullFlag",
    "PullHeader",
    "PullResult",
    "QueryHeader",
    "QueryOffsetHeader",
    "QueryResult",
    "QueueHeader",
    "RecallHeader",
    "RegisterBrokerResult",
    "ReplyPushHeader",
    "ResetOffsetHeader",
    "RouteHeader",
    "RunningInfoHeader",
    "SearchOffsetHeader",
    "SendBackHeader",
    "SendHeader",
    "SendResult",
    "TimestampResult",
    "TopicHeader",
    "UnregisterHeader",
    "UpdateOffsetHeader",
    "ViewHeader",
    "named",
]
