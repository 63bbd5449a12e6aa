"""Messages that every direction must transfer without a change: a few that are hard to map, and many ordinary ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from mqbridge.message import Message, Pair
from tests.strategies import comparable_fields

LONG_AGO = 1_600_000_000_000
EVENT_TIME = 1_795_219_034_805
"""Times in ms since the epoch."""
ORDINARY_COUNT = 500
"""Number of ordinary messages per partition."""


def odd(largest: int) -> Iterator[Message]:
    """Yield one message of each kind that is hard to map; payloads have up to `largest` bytes."""
    yield Message(b"plain")
    yield Message(b"")
    yield Message(b"", (("empty", ""),))
    yield Message(None)
    yield Message(None, (("why", "deleted"),), key="gone")
    yield Message(b"\x00")
    for size in (1, 10, 4095, 4096, 100_000, largest):
        yield Message(bytes(n % 251 for n in range(size)) if size <= 4096 else random.Random(size).randbytes(size))
    yield Message(bytes(range(256)) * 4, key=b"\x00\xff", ordering_key=b"\x01\x80")
    yield Message("naïve ünï 試験 🚀\x00\x01\x02".encode(), (("試", "験 🚀"), ("grün", "blau")), key="schlüssel")
    for count in (1, 2, 20, 200):
        yield Message(b"properties", tuple((f"name{n}", f"value {n}") for n in range(count)))
    yield Message(b"repeats", (("b", "2"), ("a", "1"), ("b", "3"), ("b", "2")))
    yield Message(b"separators", (("a,b", "c=d%"), ("x\x01y", "\x02"), ("%2C", "100%"), ("leer", " "), (" ", "x"), ("e", "")))
    yield Message(b"like a system's own", (("TAGS", "t"), ("KEYS", "k"), ("DELAY", "3"), ("UNIQ_KEY", "u"), ("$msgTime$", "x")))
    yield Message(b"like ours", (("mqbridge.key", "mine"), ("mqbridge.mine", "kept"), ("mqbridge.u.x", "y")))
    yield Message(b"key", key="k")
    yield Message(b"ordered", ordering_key=b"o")
    yield Message(b"keys", keys=("one", "two"))
    yield Message(b"keys with spaces", keys=("one two", "three, four = five", "sechs"))
    yield Message(b"key and keys", key="two", keys=("one", "two"))
    yield Message(b"first of keys", key="one", keys=("one", "two"))
    yield Message(b"typed", msg_type="created")
    yield Message(b"typed by a pair", (("$msgType$", "paid"), ("k", "v")), msg_type="paid")
    yield Message(b"attributes", (("a", "1"), ("b", "2")), attributes=b"a=1,b=2")
    yield Message(b"odd attributes", (("a", "1"),), attributes=b",,a=1,\xff\xfe,b")
    yield Message(b"at a time", event_time=EVENT_TIME)
    yield Message(b"at the first time", event_time=0)
    yield Message(b"due long ago", deliver_at=LONG_AGO)


def ordinary(partition: int) -> Iterator[Message]:
    """Yield messages as applications send them: with a key, a type, a few properties; the same in each run."""
    chance = random.Random(partition)
    for number in range(ORDINARY_COUNT):
        pairs: list[Pair] = [("seq", str(number)), *((f"p{n}", chance.randbytes(4).hex()) for n in range(chance.randrange(6)))]
        yield Message(
            b"%d/%d " % (partition, number) + chance.randbytes(chance.randrange(1, 2000)),
            tuple(pairs),
            key=f"key-{chance.randrange(50)}" if chance.random() < 0.5 else None,
            keys=("index",) if chance.random() < 0.2 else (),
            msg_type=chance.choice((None, "t0", "t1")),
            event_time=EVENT_TIME + number if chance.random() < 0.5 else None,
        )


def assert_same(want: Sequence[Message], got: Sequence[Message], where: str) -> None:
    """Compare every mapped field of every message, in order; only the first difference is shown."""
    for number, (sent, arrived) in enumerate(zip(want, got, strict=False)):
        before, after = comparable_fields(sent), comparable_fields(arrived)
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        assert not changed, f"{where}, message {number} ({(sent.payload or b'')[:40]!r}): {str(changed)[:600]}"
    assert len(got) == len(want), f"{where}: {len(got)} messages of {len(want)}"
