"""Request codes, response codes, and the reaction that each response code calls for.

NameServers, brokers and clients share one number space: `Code` holds the codes of requests, `Status` those of responses.
"""

from typing import NamedTuple

from mqbridge.errors import Failure, ServerRefused

VERSION = 479
"""The version that mqbridge announces: 5.3.3. Name servers send standard JSON from 401 on, brokers filter by SQL from 232 on."""
V5_0_0 = 413
"""The version that 5.0.0 announces."""
STANDARD_JSON_VERSION = 401
"""Lower versions expect routes whose keys are bare numbers, not strings."""
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
    """Response codes."""

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
"""Responses to a send that stored the message; all carry the response header of a send."""


class Meaning(NamedTuple):
    """The reaction that a response code calls for, and its explanation for the log."""

    failure: Failure
    text: str


_RETRY, _REFRESH, _REFUSED, _FATAL = Failure.RETRY, Failure.REFRESH, Failure.REFUSED, Failure.FATAL

MEANINGS = {
    1: Meaning(_RETRY, "the server failed, or a field of the request made no sense to it"),
    2: Meaning(_RETRY, "the broker is overloaded"),
    3: Meaning(_FATAL, "the server does not know this request: it is older, or the feature is switched off"),
    4: Meaning(_RETRY, "the transaction could not be committed or rolled back"),
    10: Meaning(_RETRY, "stored, but not flushed to disk in time"),
    11: Meaning(_RETRY, "stored, but no slave has it"),
    12: Meaning(_RETRY, "stored, but no slave wrote it in time"),
    13: Meaning(_REFUSED, "the message is too large, has too many properties or is delayed for too long"),
    14: Meaning(_REFRESH, "the broker is shutting down, is a slave or its disk is full"),
    15: Meaning(_FATAL, "the server is too old for this"),
    16: Meaning(_FATAL, "the topic, group or broker is closed for this, or the credentials were not accepted"),
    17: Meaning(_REFRESH, "the topic does not exist at this server"),
    18: Meaning(_FATAL, "the topic exists already"),
    19: Meaning(_RETRY, "there is nothing to read now"),
    20: Meaning(_RETRY, "none of the messages scanned passes the filter"),
    21: Meaning(_RETRY, "the offset is outside the queue's range, or was reset"),
    22: Meaning(_RETRY, "not found"),
    23: Meaning(_FATAL, "the filter expression cannot be read"),
    24: Meaning(_RETRY, "the broker has no subscription of this group before its heartbeat"),
    25: Meaning(_RETRY, "the broker has an older subscription of this group before its heartbeat"),
    26: Meaning(_FATAL, "the consumer group does not exist, and groups are not created automatically: create it"),
    27: Meaning(_RETRY, "the broker has no filter data of this group before its heartbeat"),
    28: Meaning(_RETRY, "the broker has older filter data of this group before its heartbeat"),
    29: Meaning(_REFRESH, "a number is out of range; usually the topic has fewer queues now"),
    200: Meaning(_REFUSED, "the transaction is to be committed"),
    201: Meaning(_REFUSED, "the transaction is to be rolled back"),
    202: Meaning(_REFUSED, "the state of the transaction is unknown"),
    203: Meaning(_REFUSED, "the transaction belongs to another producer group"),
    204: Meaning(_REFRESH, "the message has no buyer id"),
    205: Meaning(_REFRESH, "the message belongs to another unit"),
    206: Meaning(_RETRY, "no such consumer is connected"),
    207: Meaning(_RETRY, "the consumer did not answer in time"),
    208: Meaning(_REFUSED, "there is no message at this offset"),
    209: Meaning(_RETRY, "the broker's limit of held requests is reached"),
    210: Meaning(_RETRY, "the request is too old: are the clocks in sync?"),
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
"""By response code; success has none."""

UNKNOWN = Meaning(_RETRY, "a response code of no known version of RocketMQ")
ACL_EXCEPTION = "AclException"
"""In the remark of a response 1: a 4.x broker denies access."""


def _names_by_code(codes: type) -> dict[int, str]:
    return {value: name for name, value in vars(codes).items() if isinstance(value, int)}


_REQUESTS = _names_by_code(Code)
_STATUSES = _names_by_code(Status)


def request_name(code: int) -> str:
    """Return a request's name for logs and errors."""
    return _REQUESTS.get(code) or f"request {code}"


def status_name(status: int) -> str:
    """Return a response's name for logs and errors."""
    return _STATUSES.get(status) or f"answer {status}"


def failure_of(status: int, remark: str | None = None) -> Failure:
    """Return the reaction to a response with this code; 4.x brokers report denied access in the remark only."""
    if status == Status.SYSTEM_ERROR and remark and ACL_EXCEPTION in remark:
        return Failure.FATAL
    return MEANINGS.get(status, UNKNOWN).failure


def refused(request: str, status: int, remark: str | None) -> ServerRefused:
    """Make the exception for an error response: `request` names the request and its server, `remark` is the server's own text."""
    meaning = MEANINGS.get(status, UNKNOWN).text
    detail = f": {remark.strip().splitlines()[0][:300]}" if remark and remark.strip() else ""
    return ServerRefused(
        f"{request} was refused with {status} {status_name(status)} ({meaning}){detail}", status, failure_of(status, remark)
    )
