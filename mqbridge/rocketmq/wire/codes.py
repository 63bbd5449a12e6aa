"""Request codes, answer codes and what helps after each of the latter.

One number space serves NameServers, brokers and clients; `Code` has the requests, `Status` what `code` says in an answer.
"""

from typing import NamedTuple

from mqbridge.errors import Failure, ServerRefused

VERSION = 479
"""We say that we are 5.3.3. From 401 on a NameServer writes routes in standard JSON, from 232 on a broker may filter by SQL."""
V5_0_0 = 413
"""What 5.0.0 says."""
STANDARD_JSON_VERSION = 401
"""Who sends a lower version reads routes with bare numbers as keys."""
LANGUAGE = "PYTHON"


class Code:
    """Request codes."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_DATA_VERSION = 322
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    AUTH_CREATE_USER = 3001
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    PEEK_MESSAGE = 200052
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    BATCH_ACK_MESSAGE = 200151


class Status:
    """Answer codes."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


STORED = frozenset({Status.SUCCESS, Status.FLUSH_DISK_TIMEOUT, Status.SLAVE_NOT_AVAILABLE, Status.FLUSH_SLAVE_TIMEOUT})
"""A send answered with one of these is stored; all carry the send's answer header."""


class Meaning(NamedTuple):
    """What helps after an answer code, and what it means for whoever reads the log."""

    failure: Failure
    text: str


_RETRY, _REFRESH, _REFUSED, _FATAL = Failure.RETRY, Failure.REFRESH, Failure.REFUSED, Failure.FATAL

MEANINGS = {
    1: Meaning(_RETRY, "the server failed, or a field of the request made no sense to it"),
    2: Meaning(_RETRY, "the broker is overloaded"),
    3: Meaning(_FATAL, "the server does not know this request: it is older, or the feature is switched off"),
    4: Meaning(_RETRY, "the transaction could not be ended"),
    10: Meaning(_RETRY, "it is stored, but not on disk in time"),
    11: Meaning(_RETRY, "it is stored, but no slave has it"),
    12: Meaning(_RETRY, "it is stored, but a slave had not written it in time"),
    13: Meaning(_REFUSED, "the message is too large, has too many properties or is delayed for too long"),
    14: Meaning(_REFRESH, "the broker is shutting down, is a slave or its disk is full"),
    15: Meaning(_FATAL, "the server is too old for this"),
    16: Meaning(_FATAL, "the topic, group or broker is closed for this, or the credentials were not accepted"),
    17: Meaning(_REFRESH, "the topic is not at this server"),
    18: Meaning(_FATAL, "the topic exists already"),
    19: Meaning(_RETRY, "there is nothing to read now"),
    20: Meaning(_RETRY, "nothing of what was looked at passes the filter"),
    21: Meaning(_RETRY, "the offset is outside of what the queue holds, or was reset"),
    22: Meaning(_RETRY, "it was not found"),
    23: Meaning(_FATAL, "the filter expression cannot be read"),
    24: Meaning(_RETRY, "the broker has no subscription of this group until its heartbeat"),
    25: Meaning(_RETRY, "the broker has an older subscription of this group until its heartbeat"),
    26: Meaning(_FATAL, "the consumer group does not exist, and groups are not created automatically: create it"),
    27: Meaning(_RETRY, "the broker has no filter data of this group until its heartbeat"),
    28: Meaning(_RETRY, "the broker has older filter data of this group until its heartbeat"),
    29: Meaning(_REFRESH, "a number is out of range; mostly the topic has fewer queues now"),
    200: Meaning(_REFUSED, "the transaction is to be committed"),
    201: Meaning(_REFUSED, "the transaction is to be rolled back"),
    202: Meaning(_REFUSED, "the state of the transaction is not known"),
    203: Meaning(_REFUSED, "the transaction belongs to another producer group"),
    204: Meaning(_REFRESH, "the message has no buyer id"),
    205: Meaning(_REFRESH, "the message belongs to another unit"),
    206: Meaning(_RETRY, "no such consumer is connected"),
    207: Meaning(_RETRY, "the consumer did not answer in time"),
    208: Meaning(_REFUSED, "there is no message at this offset"),
    209: Meaning(_RETRY, "the broker holds as many requests as it may"),
    210: Meaning(_RETRY, "the request is older than it may be: are the clocks the same?"),
    211: Meaning(_REFRESH, "no such broker is known"),
    212: Meaning(_RETRY, "the broker has not indexed everything yet"),
    213: Meaning(_FATAL, "the group consumes by broadcast and has no offsets at the broker"),
    215: Meaning(_RETRY, "the broker limits how fast this group reads"),
    501: Meaning(_REFRESH, "the broker does not lead this queue"),
    604: Meaning(_FATAL, "the broker's configuration forbids it"),
    1500: Meaning(_REFRESH, "the server is going away: connect again"),
    3001: Meaning(_FATAL, "no such user"),
    3002: Meaning(_FATAL, "no such policy"),
}
"""By answer code; success has none."""

UNKNOWN = Meaning(_RETRY, "no version of RocketMQ that we know says this")
ACL_EXCEPTION = "AclException"
"""In the remark of an answer 1: how 4.x brokers refuse credentials and rights."""


def _names(of: type) -> dict[int, str]:
    return {value: name for name, value in vars(of).items() if isinstance(value, int)}


_REQUESTS = _names(Code)
_STATUSES = _names(Status)


def name_of(code: int) -> str:
    """A request's name for logs and errors."""
    return _REQUESTS.get(code) or f"request {code}"


def status_name(status: int) -> str:
    """An answer's name for logs and errors."""
    return _STATUSES.get(status) or f"answer {status}"


def failure_of(status: int, remark: str | None = None) -> Failure:
    """What helps after an answer with this code; 4.x brokers tell a lack of rights by the remark only."""
    if status == Status.SYSTEM_ERROR and remark and ACL_EXCEPTION in remark:
        return Failure.FATAL
    return MEANINGS.get(status, UNKNOWN).failure


def refused(what: str, status: int, remark: str | None) -> ServerRefused:
    """The exception for an answer with an error code: `what` was asked of whom, `remark` is the server's own text."""
    meaning = MEANINGS.get(status, UNKNOWN).text
    told = f": {remark.strip().splitlines()[0][:300]}" if remark and remark.strip() else ""
    return ServerRefused(
        f"{what} was refused with {status} {status_name(status)} ({meaning}){told}", status, failure_of(status, remark)
    )
