"""The messages of the quickstart: a mixed stream that is the same in every run, and checksums to compare copies."""

import hashlib
import random
from collections.abc import Iterator

from mqbridge.message import Message

SEED = 20
LARGE_BYTES = 96 << 10
"""Payload size of the messages that the quickstart's target refuses."""
_NOW_MS = 1_750_000_000_000


def ordinary(partition: int, count: int) -> Iterator[Message]:
    """Yield the partition's messages: text, JSON, binary, empty and null payloads, with every field a message can have."""
    chance = random.Random(SEED + partition)  # noqa: S311 - repeatable on purpose
    for number in range(count):
        yield _KINDS[number % len(_KINDS)](partition, number, chance)


def too_large(partition: int) -> Message:
    """Return a message that a target with a small limit refuses."""
    return Message(b"x" * LARGE_BYTES, (("kind", "too large"),), key=f"large-{partition}")


def _text(partition: int, number: int, _: random.Random) -> Message:
    return Message(
        f"order {number} of partition {partition}".encode(), (("source", "quickstart"),), key=f"customer-{number % 97}"
    )


def _json(_: int, number: int, chance: random.Random) -> Message:
    body = f'{{"order": {number}, "name": "Grüße, 世界, 🚚", "amount": {chance.randrange(10**6)}}}'
    return Message(
        body.encode(), (("lang", "多"), ("tag", "a"), ("tag", "b")), key=f"鍵-{number % 13}", event_time=_NOW_MS + number
    )


def _binary(_: int, number: int, chance: random.Random) -> Message:
    return Message(chance.randbytes(chance.randrange(1, 2000)), key=number.to_bytes(4) + b"\xff", ordering_key=b"\x00\xfe")


def _empty(_: int, number: int, __: random.Random) -> Message:
    return Message(b"", (("empty", ""), ("number", str(number))))


def _null(_: int, number: int, __: random.Random) -> Message:
    return Message(None, (("deleted", "yes"),), key=f"customer-{number % 97}")


def _typed(_: int, number: int, chance: random.Random) -> Message:
    return Message(
        chance.randbytes(100), msg_type="created", attributes=b"$msgType$=created,free=text", keys=(f"k{number}", "all")
    )


_KINDS = (_text, _json, _binary, _empty, _typed, _text, _json, _null)


class Checksum:
    """A checksum over the order, the number and every field of a partition's messages."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self.count = 0

    def add(self, message: Message) -> None:
        """Add the next message."""
        self.count += 1
        self._hash.update(repr(_content(message)).encode())

    @property
    def value(self) -> str:
        """Return sixteen hexadecimal digits."""
        return self._hash.hexdigest()


def _content(message: Message) -> tuple[object, ...]:
    """Return the fields that a copy must share with its original; position and delivery fields may differ."""
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
