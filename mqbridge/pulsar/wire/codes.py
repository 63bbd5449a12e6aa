"""Error codes of brokers: their meaning, and for each kind of request what the client does about them (a `Failure`).

RETRY: the same request may succeed later. REFRESH: it may succeed after a new lookup of the topic's owner. REFUSED: it never
succeeds, but others may. FATAL: no request succeeds until a person changes something. The columns of the table:

failure      for all other requests: first opening of a producer or a consumer, lookups, seeks, receipts of acknowledgements
sending      for SEND_ERROR: REFUSED fails this entry, FATAL ends the producer; with RETRY the producer is opened again and
             repeats all entries without a receipt
subscribing  for the repeated SUBSCRIBE of a consumer that was open before: the broker may still have the consumer of the old
             connection, so that "busy" errors are temporary
"""

from typing import NamedTuple

from mqbridge.errors import Failure, NotPermitted, ServerRefused, TopicTerminated

_RETRY, _REFRESH, _REFUSED, _FATAL = Failure.RETRY, Failure.REFRESH, Failure.REFUSED, Failure.FATAL


class Code(NamedTuple):
    """One error code: its number and name in the protocol, and how it is treated."""

    number: int
    name: str
    failure: Failure
    sending: Failure
    subscribing: Failure
    text: str
    """Explanation for error messages."""


TABLE = (
    Code(0, "UnknownError", _RETRY, _RETRY, _RETRY, "the broker failed without giving a reason"),
    Code(1, "MetadataError", _RETRY, _RETRY, _RETRY, "the broker's metadata store failed, or the request was invalid"),
    Code(2, "PersistenceError", _RETRY, _RETRY, _RETRY, "the broker could not write to its storage"),
    Code(3, "AuthenticationError", _FATAL, _RETRY, _FATAL, "the broker does not accept these credentials"),
    Code(
        4, "AuthorizationError", _FATAL, _RETRY, _FATAL, "this role may not do that: grant it the produce or consume permission"
    ),
    Code(5, "ConsumerBusy", _FATAL, _RETRY, _RETRY, "the subscription is in use, or in use with another subscription type"),
    Code(6, "ServiceNotReady", _REFRESH, _RETRY, _REFRESH, "the topic is not loaded at this broker"),
    Code(7, "ProducerBlockedQuotaExceededError", _RETRY, _RETRY, _RETRY, "the backlog quota is full: producers must wait"),
    Code(8, "ProducerBlockedQuotaExceededException", _RETRY, _RETRY, _RETRY, "the backlog quota is exhausted"),
    Code(9, "ChecksumError", _REFUSED, _REFUSED, _REFUSED, "the entry does not match its checksum"),
    Code(10, "UnsupportedVersionError", _FATAL, _RETRY, _FATAL, "the broker does not support this feature"),
    Code(11, "TopicNotFound", _FATAL, _RETRY, _FATAL, "the topic or its namespace does not exist: create it"),
    Code(
        12, "SubscriptionNotFound", _FATAL, _RETRY, _FATAL, "the subscription does not exist and may not be created automatically"
    ),
    Code(13, "ConsumerNotFound", _REFRESH, _RETRY, _REFRESH, "the broker no longer knows this consumer"),
    Code(14, "TooManyRequests", _RETRY, _RETRY, _RETRY, "the broker has too many pending lookups"),
    Code(15, "TopicTerminatedError", _FATAL, _FATAL, _FATAL, "the topic was terminated and accepts no more messages"),
    Code(16, "ProducerBusy", _RETRY, _RETRY, _RETRY, "a producer of this name is connected, or the topic is at its limit"),
    Code(17, "InvalidTopicName", _FATAL, _RETRY, _FATAL, "the broker does not accept this topic name"),
    Code(18, "IncompatibleSchema", _FATAL, _RETRY, _FATAL, "the schema is incompatible with the topic's schema"),
    Code(19, "ConsumerAssignError", _FATAL, _RETRY, _RETRY, "the key ranges of this consumer overlap another consumer's"),
    Code(20, "TransactionCoordinatorNotFound", _RETRY, _RETRY, _RETRY, "there is no transaction coordinator"),
    Code(21, "InvalidTxnStatus", _REFUSED, _RETRY, _REFUSED, "the transaction is not in that state"),
    Code(22, "NotAllowedError", _FATAL, _REFUSED, _FATAL, "a limit or a policy of the broker forbids it"),
    Code(23, "TransactionConflict", _REFUSED, _RETRY, _REFUSED, "another transaction has already acknowledged the message"),
    Code(24, "TransactionNotFound", _REFUSED, _RETRY, _REFUSED, "the transaction does not exist"),
    Code(25, "ProducerFenced", _FATAL, _RETRY, _FATAL, "another producer has exclusive access"),
)

BY_NUMBER = {code.number: code for code in TABLE}

UNKNOWN = 0
AUTHENTICATION = 3
AUTHORIZATION = 4
CONSUMER_BUSY = 5
SERVICE_NOT_READY = 6
CHECKSUM = 9
TOPIC_NOT_FOUND = 11
SUBSCRIPTION_NOT_FOUND = 12
TERMINATED = 15
PRODUCER_BUSY = 16
INVALID_TOPIC_NAME = 17
INCOMPATIBLE_SCHEMA = 18
CONSUMER_ASSIGN = 19
NOT_ALLOWED = 22
PRODUCER_FENCED = 25
METADATA = 1
NOT_PERMITTED = frozenset({AUTHORIZATION, 5, 19, 22, 25})
"""Codes of what may be permitted later without a change of the client: permissions, limits, types of subscriptions."""


_UNDECIDED = "Exception occurred while trying to authorize"
"""Beginning of the message of an AuthorizationError if the broker could not decide, for example because its metadata store is
unreachable. A later request may succeed."""


def is_topic_missing(error: Exception | None) -> bool:
    """Return True if the error says that the topic does not exist."""
    return isinstance(error, ServerRefused) and error.code == TOPIC_NOT_FOUND


def of(number: int) -> Code:
    """Return the `Code` with this number; an unknown number counts as a temporary error."""
    return BY_NUMBER.get(number) or Code(number, f"error {number}", _RETRY, _RETRY, _RETRY, "unknown error code")


def refusal_error(number: int, message: str, what: str) -> ServerRefused:
    """Return the exception for an error response; `what` names the request in a few words, for the beginning of the text.

    `message` is the broker's text, of which only the first line is kept, at most 300 characters. The exception's failure is that
    of the column `failure`.
    """
    if number == AUTHORIZATION and message.startswith(_UNDECIDED):
        number = UNKNOWN  # a temporary error
    code = of(number)
    detail = f" ({message.splitlines()[0][:300]})" if message else ""
    error_class = NotPermitted if number in NOT_PERMITTED else TopicTerminated if number == TERMINATED else ServerRefused
    return error_class(f"{what}: {code.name}: {code.text}{detail}", number, code.failure)
