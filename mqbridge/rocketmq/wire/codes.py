"""Request codes, response codes, and the remedy (`Failure`) that each response code calls for.

NameServers, brokers and clients share one number space: `Code` holds the codes of requests, `Status` those of responses.
"""

from typing import NamedTuple

from mqbridge.errors import Failure, NotPermitted, ServerRefused

VERSION = 479
"""The version number that mqbridge announces in its commands: the one of RocketMQ 5.3.3.

NameServers send standard JSON to clients that announce 401 or more, and brokers accept SQL filters from 232 on.
"""
V5_0_0 = 413
"""The version number of RocketMQ 5.0.0, for comparison with the number that a server announces."""
STANDARD_JSON_VERSION = 401
"""Clients that announce less expect routes with unquoted numbers as keys, which is not standard JSON."""
LANGUAGE = "PYTHON"
"""The client language that mqbridge announces in its commands."""


class Code:
    """Request codes. The permission that each needs is in `request_permissions`."""

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
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    GET_TOPICS_BY_CLUSTER = 224
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    GET_CONSUMER_RUNNING_INFO = 307
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
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
    BROKER_HEARTBEAT = 904
    AUTH_CREATE_USER = 3001
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    CHANGE_MESSAGE_INVISIBLETIME = 200053
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
"""Response codes of a send that mean that the message is stored; each of these responses has a `SendResultHeader`."""


class Meaning(NamedTuple):
    """The remedy that a response code calls for, and an explanation of the code for logs and errors.

    RETRY: send the same request again. REFRESH: look up the route of the topic first. REFUSED: this message or request never
    succeeds, others may. FATAL: every request fails until a person changes something.
    """

    failure: Failure
    text: str


_RETRY, _REFRESH, _REFUSED, _FATAL = Failure.RETRY, Failure.REFRESH, Failure.REFUSED, Failure.FATAL

MEANINGS = {
    Status.SYSTEM_ERROR: Meaning(_RETRY, "the server failed, or it could not interpret a field of the request"),
    Status.SYSTEM_BUSY: Meaning(_RETRY, "the broker is overloaded"),
    Status.REQUEST_CODE_NOT_SUPPORTED: Meaning(
        _FATAL, "the server does not know this request: it is older, or the feature is switched off"
    ),
    Status.TRANSACTION_FAILED: Meaning(_RETRY, "the transaction could not be committed or rolled back"),
    # Sends count the next three codes as success (`STORED`); the remedy applies only to other requests.
    Status.FLUSH_DISK_TIMEOUT: Meaning(_RETRY, "stored, but not flushed to disk in time"),
    Status.SLAVE_NOT_AVAILABLE: Meaning(_RETRY, "stored, but no slave was available for a copy"),
    Status.FLUSH_SLAVE_TIMEOUT: Meaning(_RETRY, "stored, but no slave confirmed its copy in time"),
    Status.MESSAGE_ILLEGAL: Meaning(_REFUSED, "the message is too large, has too many properties or is delayed for too long"),
    Status.SERVICE_NOT_AVAILABLE: Meaning(_REFRESH, "the broker is shutting down, is a slave or its disk is full"),
    Status.VERSION_NOT_SUPPORTED: Meaning(_FATAL, "the server is too old for this request"),
    Status.NO_PERMISSION: Meaning(
        _FATAL, "the topic, group or broker does not permit this, or the credentials were not accepted"
    ),
    Status.TOPIC_NOT_EXIST: Meaning(_REFRESH, "the topic does not exist at this server"),
    Status.TOPIC_EXIST_ALREADY: Meaning(_FATAL, "the topic exists already"),
    Status.PULL_NOT_FOUND: Meaning(_RETRY, "there is nothing to read now"),
    Status.PULL_RETRY_IMMEDIATELY: Meaning(_RETRY, "none of the messages scanned passes the filter"),
    Status.PULL_OFFSET_MOVED: Meaning(_RETRY, "the offset is outside the queue's range, or was reset"),
    Status.QUERY_NOT_FOUND: Meaning(_RETRY, "the broker found nothing for this query"),
    Status.SUBSCRIPTION_PARSE_FAILED: Meaning(_FATAL, "the filter expression cannot be read"),
    Status.SUBSCRIPTION_NOT_EXIST: Meaning(_RETRY, "the broker does not know the group's subscription until the next heartbeat"),
    Status.SUBSCRIPTION_NOT_LATEST: Meaning(_RETRY, "the broker has an older subscription of the group until the next heartbeat"),
    Status.SUBSCRIPTION_GROUP_NOT_EXIST: Meaning(
        _FATAL, "the consumer group does not exist, and groups are not created automatically: create it"
    ),
    Status.FILTER_DATA_NOT_EXIST: Meaning(_RETRY, "the broker does not know the group's filter data until the next heartbeat"),
    Status.FILTER_DATA_NOT_LATEST: Meaning(_RETRY, "the broker has older filter data of the group until the next heartbeat"),
    Status.INVALID_PARAMETER: Meaning(_REFRESH, "a number is out of range; usually the topic has fewer queues now"),
    Status.TRANSACTION_SHOULD_COMMIT: Meaning(_REFUSED, "the transaction is to be committed"),
    Status.TRANSACTION_SHOULD_ROLLBACK: Meaning(_REFUSED, "the transaction is to be rolled back"),
    Status.TRANSACTION_STATE_UNKNOW: Meaning(_REFUSED, "the state of the transaction is unknown"),
    Status.TRANSACTION_STATE_GROUP_WRONG: Meaning(_REFUSED, "the transaction belongs to another producer group"),
    Status.NO_BUYER_ID: Meaning(_REFRESH, "the message has no buyer id"),
    Status.NOT_IN_CURRENT_UNIT: Meaning(_REFRESH, "the message belongs to another unit"),
    Status.CONSUMER_NOT_ONLINE: Meaning(_RETRY, "no such consumer is connected"),
    Status.CONSUME_MSG_TIMEOUT: Meaning(_RETRY, "the consumer did not answer in time"),
    Status.NO_MESSAGE: Meaning(_REFUSED, "there is no message at this offset"),
    Status.POLLING_FULL: Meaning(_RETRY, "the broker already holds its maximum of waiting requests"),
    Status.POLLING_TIMEOUT: Meaning(_RETRY, "the request was too old on arrival: are the clocks of client and broker in sync?"),
    Status.BROKER_NOT_EXIST: Meaning(_REFRESH, "no such broker is known"),
    Status.BROKER_DISPATCH_NOT_COMPLETE: Meaning(_RETRY, "the broker has not indexed everything yet"),
    Status.BROADCAST_CONSUMPTION: Meaning(_FATAL, "the group consumes by broadcast and has no offsets at the broker"),
    Status.FLOW_CONTROL: Meaning(_RETRY, "the broker limits how fast this group reads"),
    Status.NOT_LEADER_FOR_QUEUE: Meaning(_REFRESH, "the broker does not lead this queue"),
    Status.ILLEGAL_OPERATION: Meaning(_FATAL, "the broker's configuration forbids this request"),
    Status.GO_AWAY: Meaning(_REFRESH, "the server is going away: connect again"),
    Status.USER_NOT_EXIST: Meaning(_FATAL, "no such user"),
    Status.POLICY_NOT_EXIST: Meaning(_FATAL, "no such policy"),
}
"""The meaning of each response code except SUCCESS."""

UNKNOWN_MEANING = Meaning(_RETRY, "a response code that no known version of RocketMQ uses")
ACL_EXCEPTION = "AclException"
"""Part of the remark with which a 4.x broker denies access; the response code is SYSTEM_ERROR."""


def _names_by_code(codes: type) -> dict[int, str]:
    return {value: name for name, value in vars(codes).items() if name.isupper()}  # not Python's own `__firstlineno__`


_REQUEST_NAMES = _names_by_code(Code)
_STATUS_NAMES = _names_by_code(Status)


def request_name(code: int) -> str:
    """Return the name of a request code for logs and errors."""
    return _REQUEST_NAMES.get(code) or f"request {code}"


def status_name(status: int) -> str:
    """Return the name of a response code for logs and errors."""
    return _STATUS_NAMES.get(status) or f"response {status}"


def failure_of(status: int, remark: str | None = None) -> Failure:
    """Return the remedy for a response with this code; 4.x brokers report denied access in the remark only."""
    if status == Status.SYSTEM_ERROR and remark and ACL_EXCEPTION in remark:
        return Failure.FATAL
    return MEANINGS.get(status, UNKNOWN_MEANING).failure


def refusal_error(request: str, status: int, remark: str | None) -> ServerRefused:
    """Return the exception for an error response; NotPermitted if an administrator may permit it later.

    `request` names the request and its server; `remark` is the server's own text, of which the first line is quoted.
    """
    meaning = MEANINGS.get(status, UNKNOWN_MEANING).text
    detail = f": {remark.strip().splitlines()[0][:300]}" if remark and remark.strip() else ""
    error_class = NotPermitted if status == Status.NO_PERMISSION else ServerRefused
    return error_class(
        f"{request} was refused with {status} {status_name(status)} ({meaning}){detail}", status, failure_of(status, remark)
    )
