"""What a broker's error codes mean, and what helps.

`failure` is about opening a producer or consumer, and about lookups. For a SEND_ERROR three codes say something else, see
`SEND_FAILURES`; every other one means that the broker lost its footing and the producer has to be opened again.
"""

from typing import NamedTuple

from mqbridge.errors import Failure, ServerRefused

_RETRY, _REFRESH, _REFUSED, _FATAL = Failure.RETRY, Failure.REFRESH, Failure.REFUSED, Failure.FATAL


class Code(NamedTuple):
    """A row of the table."""

    number: int
    name: str
    failure: Failure
    text: str


TABLE = (
    Code(0, "UnknownError", _RETRY, "the broker failed and does not say why"),
    Code(1, "MetadataError", _RETRY, "the broker's metadata store failed, or the request made no sense to it"),
    Code(2, "PersistenceError", _RETRY, "the broker could not write to its storage"),
    Code(3, "AuthenticationError", _FATAL, "the broker does not accept these credentials"),
    Code(4, "AuthorizationError", _FATAL, "this role may not do that: grant it produce or consume"),
    Code(5, "ConsumerBusy", _FATAL, "the subscription is taken, or is used with another subscription type"),
    Code(6, "ServiceNotReady", _REFRESH, "the topic is not loaded at this broker"),
    Code(7, "ProducerBlockedQuotaExceededError", _RETRY, "the backlog quota is exhausted, producers are held"),
    Code(8, "ProducerBlockedQuotaExceededException", _RETRY, "the backlog quota is exhausted"),
    Code(9, "ChecksumError", _REFUSED, "the entry did not arrive as its checksum says"),
    Code(10, "UnsupportedVersionError", _FATAL, "the broker does not support this feature"),
    Code(11, "TopicNotFound", _FATAL, "the topic or its namespace does not exist: create it"),
    Code(12, "SubscriptionNotFound", _FATAL, "the subscription does not exist and may not be created automatically"),
    Code(13, "ConsumerNotFound", _REFRESH, "the broker no longer knows this consumer"),
    Code(14, "TooManyRequests", _RETRY, "the broker has too many lookups to do"),
    Code(15, "TopicTerminatedError", _FATAL, "the topic was terminated and takes no more messages"),
    Code(16, "ProducerBusy", _RETRY, "a producer of this name is connected, or the topic has as many as it may"),
    Code(17, "InvalidTopicName", _FATAL, "the broker does not accept this topic name"),
    Code(18, "IncompatibleSchema", _FATAL, "the topic's schema does not allow this"),
    Code(19, "ConsumerAssignError", _FATAL, "the key ranges of this consumer collide with another one's"),
    Code(20, "TransactionCoordinatorNotFound", _RETRY, "there is no transaction coordinator"),
    Code(21, "InvalidTxnStatus", _REFUSED, "the transaction is not in that state"),
    Code(22, "NotAllowedError", _FATAL, "a limit or a policy of the broker forbids it"),
    Code(23, "TransactionConflict", _REFUSED, "a transaction has acknowledged it already"),
    Code(24, "TransactionNotFound", _REFUSED, "the transaction does not exist"),
    Code(25, "ProducerFenced", _FATAL, "another producer has exclusive access"),
)

BY_NUMBER = {code.number: code for code in TABLE}

SEND_FAILURES = {9: _REFUSED, 15: _FATAL, 22: _REFUSED}
"""The codes of SEND_ERROR that are about the message or the topic; after any other one all pending messages are sent again."""

TOPIC_NOT_FOUND = 11
SERVICE_NOT_READY = 6
PRODUCER_BUSY = 16
CONSUMER_BUSY = 5
METADATA_ERROR = 1


def is_missing(error: Exception | None) -> bool:
    """Whether it says that a topic is not there."""
    return isinstance(error, ServerRefused) and error.code == TOPIC_NOT_FOUND


def refused(number: int, message: str, what: str) -> ServerRefused:
    """The exception for an error answer to `what` (a few words that name the request)."""
    code = BY_NUMBER.get(number) or Code(number, f"error {number}", _RETRY, "an error that this version does not know")
    told = f" ({message.splitlines()[0][:300]})" if message else ""
    return ServerRefused(f"{what}: {code.name}: {code.text}{told}", number, code.failure)
