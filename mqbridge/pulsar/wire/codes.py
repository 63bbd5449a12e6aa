"""What a broker's error codes mean, and what helps, by what was asked.

failure      opening a producer or a consumer for the first time, lookups, seeks, receipts of acknowledgements
sending      a SEND_ERROR: REFUSED is about this entry, FATAL about the topic; RETRY means that the broker lost its footing: the
             producer is opened again, and repeats what has no receipt
subscribing  a consumer that was open once: what a consumer of an old connection still occupies comes free
"""

from typing import NamedTuple

from mqbridge.errors import Failure, ServerRefused

_RETRY, _REFRESH, _REFUSED, _FATAL = Failure.RETRY, Failure.REFRESH, Failure.REFUSED, Failure.FATAL


class Code(NamedTuple):
    """A row of the table."""

    number: int
    name: str
    failure: Failure
    sending: Failure
    subscribing: Failure
    text: str


TABLE = (
    Code(0, "UnknownError", _RETRY, _RETRY, _RETRY, "the broker failed and does not say why"),
    Code(1, "MetadataError", _RETRY, _RETRY, _RETRY, "the broker's metadata store failed, or the request made no sense to it"),
    Code(2, "PersistenceError", _RETRY, _RETRY, _RETRY, "the broker could not write to its storage"),
    Code(3, "AuthenticationError", _FATAL, _RETRY, _FATAL, "the broker does not accept these credentials"),
    Code(4, "AuthorizationError", _FATAL, _RETRY, _FATAL, "this role may not do that: grant it produce or consume"),
    Code(5, "ConsumerBusy", _FATAL, _RETRY, _RETRY, "the subscription is taken, or is used with another subscription type"),
    Code(6, "ServiceNotReady", _REFRESH, _RETRY, _REFRESH, "the topic is not loaded at this broker"),
    Code(7, "ProducerBlockedQuotaExceededError", _RETRY, _RETRY, _RETRY, "the backlog quota is exhausted, producers are held"),
    Code(8, "ProducerBlockedQuotaExceededException", _RETRY, _RETRY, _RETRY, "the backlog quota is exhausted"),
    Code(9, "ChecksumError", _REFUSED, _REFUSED, _REFUSED, "the entry did not arrive as its checksum says"),
    Code(10, "UnsupportedVersionError", _FATAL, _RETRY, _FATAL, "the broker does not support this feature"),
    Code(11, "TopicNotFound", _FATAL, _RETRY, _FATAL, "the topic or its namespace does not exist: create it"),
    Code(
        12, "SubscriptionNotFound", _FATAL, _RETRY, _FATAL, "the subscription does not exist and may not be created automatically"
    ),
    Code(13, "ConsumerNotFound", _REFRESH, _RETRY, _REFRESH, "the broker no longer knows this consumer"),
    Code(14, "TooManyRequests", _RETRY, _RETRY, _RETRY, "the broker has too many lookups to do"),
    Code(15, "TopicTerminatedError", _FATAL, _FATAL, _FATAL, "the topic was terminated and takes no more messages"),
    Code(16, "ProducerBusy", _RETRY, _RETRY, _RETRY, "a producer of this name is connected, or the topic has as many as it may"),
    Code(17, "InvalidTopicName", _FATAL, _RETRY, _FATAL, "the broker does not accept this topic name"),
    Code(18, "IncompatibleSchema", _FATAL, _RETRY, _FATAL, "the topic's schema does not allow this"),
    Code(19, "ConsumerAssignError", _FATAL, _RETRY, _RETRY, "the key ranges of this consumer collide with another one's"),
    Code(20, "TransactionCoordinatorNotFound", _RETRY, _RETRY, _RETRY, "there is no transaction coordinator"),
    Code(21, "InvalidTxnStatus", _REFUSED, _RETRY, _REFUSED, "the transaction is not in that state"),
    Code(22, "NotAllowedError", _FATAL, _REFUSED, _FATAL, "a limit or a policy of the broker forbids it"),
    Code(23, "TransactionConflict", _REFUSED, _RETRY, _REFUSED, "a transaction has acknowledged it already"),
    Code(24, "TransactionNotFound", _REFUSED, _RETRY, _REFUSED, "the transaction does not exist"),
    Code(25, "ProducerFenced", _FATAL, _RETRY, _FATAL, "another producer has exclusive access"),
)

BY_NUMBER = {code.number: code for code in TABLE}

UNKNOWN = 0
AUTHENTICATION = 3
AUTHORIZATION = 4
TOPIC_NOT_FOUND = 11
SERVICE_NOT_READY = 6


_UNDECIDED = "Exception occurred while trying to authorize"
"""With AuthorizationError: the broker could not find out, as while its metadata store is away, and may let us in later."""


def is_missing(error: Exception | None) -> bool:
    """Whether it says that a topic is not there."""
    return isinstance(error, ServerRefused) and error.code == TOPIC_NOT_FOUND


def of(number: int) -> Code:
    """The row of a code; one that this version does not know may pass."""
    return BY_NUMBER.get(number) or Code(
        number, f"error {number}", _RETRY, _RETRY, _RETRY, "an error that this version does not know"
    )


def refused(number: int, message: str, what: str) -> ServerRefused:
    """The exception for an error answer to `what` (a few words that name the request)."""
    if number == AUTHORIZATION and message.startswith(_UNDECIDED):
        number = UNKNOWN
    code = of(number)
    told = f" ({message.splitlines()[0][:300]})" if message else ""
    return ServerRefused(f"{what}: {code.name}: {code.text}{told}", number, code.failure)
