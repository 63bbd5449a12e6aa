"""The messages of the quickstart: a mixed stream that is the same in every run, and checksums to compare copies."""

import hashlib
import random
from collections.abc import Iterator

from mqbridge.message import Message

SEED = 20
"""Seed of the random payloads."""
LARGE_BYTES = 96 << 10
"""Payload size of the messages that are larger than the target's limit (`run_demo.TARGET_LIMIT_BYTES`)."""
_FIRST_EVENT_MS = 1_750_000_000_000
"""Event time of message number 0; a constant, so that every run has the same messages."""


def ordinary_messages(partition: int, count: int) -> Iterator[Message]:
    """Yield the partition's messages: text, JSON, binary and empty payloads, with what every Pulsar SDK can say about them."""
    generator = random.Random(SEED + partition)  # noqa: S311 - repeatable on purpose
    for number in range(count):
        yield _MAKERS[number % len(_MAKERS)](partition, number, generator)


def too_large_message(partition: int) -> Message:
    """Return a message that is larger than the target's limit, so that it becomes a dead letter."""
    return Message(b"x" * LARGE_BYTES, (("kind", "too large"),), key=f"large-{partition}")


def _text(partition: int, number: int, _: random.Random) -> Message:
    return Message(
        f"order {number} of partition {partition}".encode(), (("source", "quickstart"),), key=f"customer-{number % 97}"
    )


def _json(_: int, number: int, generator: random.Random) -> Message:
    body = f'{{"order": {number}, "name": "Grüße, 世界, 🚚", "amount": {generator.randrange(10**6)}}}'
    return Message(body.encode(), (("lang", "多"), ("tag", "a")), key=f"鍵-{number % 13}", event_time=_FIRST_EVENT_MS + number)


def _binary(_: int, number: int, generator: random.Random) -> Message:
    return Message(generator.randbytes(generator.randrange(1, 2000)), key=str(number))


def _empty(_: int, number: int, __: random.Random) -> Message:
    return Message(b"", (("empty", ""), ("number", str(number))))


_MAKERS = (_text, _json, _binary, _empty, _text, _json, _binary)


class Checksum:
    """A checksum of a partition's messages: it differs if a message is missing, changed, or in another order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self.count = 0

    def add(self, message: Message) -> None:
        """Add the next message."""
        self.count += 1
        self._hash.update(repr(_content(message)).encode())

    @property
    def value(self) -> str:
        """The checksum as sixteen hexadecimal digits."""
        return self._hash.hexdigest()


def _content(message: Message) -> tuple[object, ...]:
    """Return the fields that must be equal in a message and its copy, unlike for example position and publish time."""
    return (
        message.payload,
        message.properties,
        message.key,
        message.ordering_key,
        message.keys,
        message.msg_type,
        message.attributes,
        message.event_time,
        message.deliver_at,
    )
