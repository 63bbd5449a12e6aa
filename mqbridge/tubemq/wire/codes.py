"""TubeMQ's error codes: the meaning of each for the log, and whether a retry helps.

SDKs use further codes internally, for errors of their own. Of these only 445 is listed: the gateway uses it for messages that it
refuses before sending.
"""

from typing import NamedTuple

from mqbridge.errors import Failure, NotPermitted, ServerRefused

# Names of the codes that the client handles specially; CODES has all error codes.
SUCCESS = 200
NOT_READY = 201
MOVED = 301
BAD_REQUEST = 400
UNAUTHORIZED = 401
FORBIDDEN = 403
NOT_FOUND = 404
PARTITION_OCCUPIED = 410
NO_NODE = 411
DUPLICATE_PARTITION = 412
CERTIFICATE_FAILURE = 415
RECEIVE_OVERFLOW = 419
UNSUBSCRIBABLE = 422
INCONSISTENT_CONSUME_TYPE = 424
DUPLICATE_INDEX = 430
TOPIC_NOT_DEPLOYED = 431
OVER_MAX_LENGTH = 445
GROUP_FORBIDDEN = 450
SPEED_LIMIT = 452
INTERNAL_ERROR = 500
UNAVAILABLE = 503


class Code(NamedTuple):
    """An error code: its name in the protocol, what helps against it (see `Failure`), and its meaning in words for the log."""

    name: str
    failure: Failure
    meaning: str


_RETRY, _REFRESH, _REFUSED, _FATAL = Failure.RETRY, Failure.REFRESH, Failure.REFUSED, Failure.FATAL

CODES = {
    201: Code("NOT_READY", _RETRY, "the server has just started"),
    301: Code("MOVED", _RETRY, "the Broker has deleted the data at this offset"),
    400: Code("BAD_REQUEST", _REFUSED, "a field is missing or beyond its limit; for a send, the message is too large or empty"),
    401: Code("UNAUTHORIZED", _REFRESH, "the partition is not registered for this consumer"),
    403: Code("FORBIDDEN", _REFRESH, "the topic or partition does not exist on this Broker or is closed"),
    404: Code("NOT_FOUND", _RETRY, "there is nothing to read now"),
    # 410 refuses a registration, 412 a later heartbeat or get of a consumer that has lost its registration.
    410: Code("PARTITION_OCCUPIED", _REFRESH, "another consumer of the group holds the partition"),
    411: Code("HB_NO_NODE", _REFRESH, "the server does not know this client; it must register again"),
    412: Code("DUPLICATE_PARTITION", _REFRESH, "another consumer of the group holds the partition"),
    # Visit tokens change every few minutes, so a retry with the new one succeeds. `client/credentials.py` decides whether refused
    # user credentials are FATAL.
    415: Code("CERTIFICATE_FAILURE", _RETRY, "the credentials or the visit token were not accepted"),
    419: Code("SERVER_RECEIVE_OVERFLOW", _RETRY, "the Broker's memory store is full until it is written to disk"),
    422: Code("PARTITION_UNSUBSCRIBABLE", _FATAL, "the partition is closed for consumers"),
    423: Code("PARTITION_UNPUBLISHABLE", _FATAL, "the partition is closed for producers"),
    424: Code("CLIENT_INCONSISTENT_CONSUMETYPE", _FATAL, "other members of the group consume in another mode"),
    425: Code("CLIENT_INCONSISTENT_TOPICSET", _FATAL, "other members of the group have other topics: to change, stop them all"),
    426: Code("CLIENT_INCONSISTENT_FILTERSET", _FATAL, "other members of the group filter differently: to change, stop them all"),
    # A bound group (427 to 429) starts at offsets that its members list: see `client/consumer/membership.py`.
    427: Code("CLIENT_INCONSISTENT_SESSIONKEY", _FATAL, "the group is bound with another session key"),
    428: Code("CLIENT_INCONSISTENT_SELECTBIG", _FATAL, "the group is bound with another select_big"),
    429: Code("CLIENT_INCONSISTENT_SOURCECOUNT", _FATAL, "the group is bound with another number of members"),
    430: Code("CLIENT_DUPLICATE_INDEXID", _FATAL, "another member of the group has this node id"),
    431: Code("TOPIC_NOT_DEPLOYED", _FATAL, "the Master knows no such topic"),
    445: Code("PARAMETER_MSG_OVER_MAX_LENGTH", _REFUSED, "the message is larger than TubeMQ can carry"),
    450: Code(
        "CONSUME_GROUP_FORBIDDEN",
        _FATAL,
        "the group may not consume this topic: have it listed by admin_add_authorized_consumergroup_info",
    ),
    452: Code("SERVER_CONSUME_SPEED_LIMIT", _RETRY, "the Broker limits how fast this group reads"),
    455: Code(
        "CONSUME_CONTENT_FORBIDDEN",
        _FATAL,
        "the group may not use these filters: have them listed by admin_mod_group_filtercond_info",
    ),
    500: Code("INTERNAL_SERVER_ERROR", _RETRY, "the server failed; its log says why"),
    503: Code("SERVICE_UNAVAILABLE", _RETRY, "the Broker is starting or stopping, or does not accept such requests now"),
    510: Code("INTERNAL_SERVER_ERROR_MSGSET_NULL", _RETRY, "the server failed; its log says why"),
}
"""Error codes by number, without 200 (success). 0, the default of the protobuf field, is an error, too: see UNKNOWN."""

UNKNOWN = Code("unknown", Failure.RETRY, "no version of TubeMQ that we know uses this code")
"""Stands for every number that is not in CODES."""
NOT_PERMITTED = frozenset({422, 423, GROUP_FORBIDDEN, 455})
"""Codes of what administrators may permit later: closed partitions, groups and filters that are not listed."""


def refusal_error(request: str, number: int, text: str) -> ServerRefused:
    """Return the exception for a response with error code `number` and server message `text`; `request` names the request."""
    code = CODES.get(number, UNKNOWN)
    error_class = NotPermitted if number in NOT_PERMITTED else ServerRefused
    return error_class(f"{request} was refused with {number} {code.name} ({code.meaning}): {text}", number, code.failure)
