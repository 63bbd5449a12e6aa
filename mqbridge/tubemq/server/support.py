"""The support table of the server for TubeMQ clients, with the texts of what it refuses."""

from mqbridge.listener.support import Backing, Support, SupportCell, SupportRow

LOG_OWN, LOG_BACKING = Backing("log", "own"), Backing("log", "backing")
PULSAR_OWN, PULSAR_BACKING = Backing("pulsar", "own"), Backing("pulsar", "backing")
ROCKETMQ_OWN, ROCKETMQ_BACKING = Backing("rocketmq", "own"), Backing("rocketmq", "backing")
BACKINGS = (LOG_OWN, LOG_BACKING, PULSAR_OWN, PULSAR_BACKING, ROCKETMQ_OWN, ROCKETMQ_BACKING)

NO_CHOICE = "this listener assigns partitions (`groups: backing`): consumers cannot choose theirs"
NO_BOUND = "this listener assigns partitions (`groups: backing`): consumers cannot begin at offsets of their own"
NO_CREATION = "there are no topics"
UNKNOWN_METHOD = "Unsupported method ID"
NOT_MANAGED = "set `manage: true` in its configuration"
NOT_CREATED = "set `create` in its configuration"

_OWN = (LOG_OWN, PULSAR_OWN, ROCKETMQ_OWN)
_BY_GROUP = (LOG_BACKING, PULSAR_BACKING, ROCKETMQ_BACKING)


def _differs(text: str, *backings: Backing) -> dict[Backing, SupportCell]:
    return {backing: SupportCell(Support.DIFFERS, text) for backing in backings}


def _refused(text: str, code: str) -> SupportCell:
    return SupportCell(Support.REFUSED, text, code)


TABLE = (
    SupportRow("Producers: messages with attributes, types and times, synchronous and asynchronous, checksums"),
    SupportRow(
        "Producers: the partition of a message",
        SupportCell(Support.DIFFERS, "clients see one Broker with one store, which has all partitions of a topic"),
    ),
    SupportRow(
        "Producers: messages up to 20 MiB",
        SupportCell(Support.DIFFERS, "the cluster's own limit counts if it is smaller: clients are told"),
    ),
    SupportRow(
        "Producers: what is acknowledged",
        SupportCell(Support.DIFFERS, "it is stored in the cluster, not in a memory cache: there is no `419`, and no `503`"),
    ),
    SupportRow(
        "Message ids",
        SupportCell(Support.DIFFERS, "they follow from the partition and the offset, and are the same at every gateway"),
    ),
    SupportRow(
        "Offsets",
        exceptions=_differs(
            "they are the packed positions of Pulsar: ordered, exact, and not to be counted with", PULSAR_OWN, PULSAR_BACKING
        ),
    ),
    SupportRow("Consumers: pull and push, confirmation and rollback, several topics, several groups"),
    SupportRow(
        "Consumers: filters by type",
        SupportCell(Support.DIFFERS, "the type itself is compared, not its hash, and messages pass at once, not after a flush"),
    ),
    SupportRow(
        "Consumers: the first partitions",
        SupportCell(Support.DIFFERS, "they come with the first heartbeat, not with the second one 13 s later"),
    ),
    SupportRow(
        "Consumers: the partitions of a consumer that was killed",
        SupportCell(Support.DIFFERS, "they are free 15 s after its connection has ended, not after 30 to 45 s"),
    ),
    SupportRow(
        "Groups that several gateways share",
        exceptions={
            **_differs("one gateway serves a group", *_OWN),
            **_differs(
                "the cluster shares the partitions among the gateways, and each gateway's consumers share what it holds",
                *_BY_GROUP,
            ),
        },
    ),
    SupportRow(
        "Begin of a new group at the last message",
        exceptions=_differs(
            "a gateway that joins a group which another one has just made begins at the first message in the partitions that "
            "no consumer has had yet",
            *_BY_GROUP,
        ),
    ),
    SupportRow("Consumers that choose their partitions", exceptions=dict.fromkeys(_BY_GROUP, _refused(NO_CHOICE, "424"))),
    SupportRow(
        "Consumers that begin at offsets of their own (bound)", exceptions=dict.fromkeys(_BY_GROUP, _refused(NO_BOUND, "424"))
    ),
    SupportRow(
        "Topics: lists, growth, creation (`create`)",
        SupportCell(Support.DIFFERS, "a topic is created when a producer publishes it or a consumer subscribes to it"),
    ),
    SupportRow("Missing topics with `create: false`", _refused(NO_CREATION, "431")),
    SupportRow(
        "Rules of flow control, visit tokens, several Masters",
        SupportCell(Support.DIFFERS, "there are none: clients get the answers of a server without them"),
    ),
    SupportRow(
        "Web methods of the Master and the Broker that scripts use",
        SupportCell(
            Support.DIFFERS, "one address has both pages; stores and settings of theirs are not shown, and need no token"
        ),
    ),
    SupportRow("Web methods: moving groups without `manage: true`", _refused(NOT_MANAGED, "400")),
    SupportRow("Other methods: Brokers that register here", _refused(UNKNOWN_METHOD, "FATAL")),
)
"""The rows of the table, in the order of the page."""
