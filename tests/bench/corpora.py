"""What the bench moves: corpora that the official Java clients write, each a set of knobs of `BenchCorpus.java`.

Together they cover single sends and batches, keys or none, 0 to 30 properties, unicode, oddities, bodies of 100 to 10,000 bytes,
1 to 64 partitions, compression. All is drawn from a seed: the same seed gives the same messages.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

BATCH = 32


@dataclass(frozen=True, slots=True)
class Corpus:
    """The knobs of one corpus."""

    about: str
    payload: int = 1000
    """Bytes of the largest body."""
    payload_least: int | None = None
    """Of the smallest; None: all are of one size. Small ones are as frequent as large ones (evenly drawn logarithms)."""
    properties: int = 5
    properties_least: int | None = None
    names: int | None = None
    """Of properties that there are, of which a message has some; None: as many as a message has."""
    keyed: int = 100
    """Per cent of messages that have a key; likewise those below."""
    typed: int = 100
    unicode: int = 20
    odd: int = 0
    batch: int = BATCH
    """Messages per send of RocketMQ, most per batch of Pulsar; 1 is without batches. TubeMQ's client has none."""
    partitions: int = 8
    compression: dict[str, str] = field(default_factory=dict)
    """By system."""

    def arguments(self, system: str) -> dict[str, Any]:
        """The options of BenchFill for a system."""
        found = asdict(self)
        for name in ("about", "partitions", "compression"):
            del found[name]
        return found | {"compression": self.compression.get(system)}


CORPORA = {
    "ordinary": Corpus("1 KB, five properties, in batches"),
    "single": Corpus("1 KB, five properties, sent one by one", batch=1),
    "bare": Corpus("100 B, no key, type or property, in batches", payload=100, properties=0, keyed=0, typed=0),
    "rich": Corpus("1 KB, 30 of 60 properties, names and values of all lengths, in batches", properties=30, names=60, unicode=60),
    "odd": Corpus(
        "64 B to 10 KB, 0 to 30 of 90 properties, some without key, a fifth odd (empty, null, reserved...)",
        payload=10_000,
        payload_least=64,
        properties=30,
        properties_least=0,
        names=90,
        keyed=65,
        typed=50,
        unicode=40,
        odd=20,
    ),
    "large": Corpus("10 KB, five properties, one by one, not compressed", payload=10_000, batch=1),
    "compressed": Corpus(
        "10 KB, five properties; Pulsar LZ4 in batches, RocketMQ ZLIB one by one",
        payload=10_000,
        compression={"pulsar": "LZ4", "rocketmq": "ZLIB"},
    ),
    "zstd": Corpus(
        "100 B to 10 KB, five properties; Pulsar ZSTD in batches, RocketMQ ZSTD above 4 KiB",
        payload=10_000,
        payload_least=100,
        compression={"pulsar": "ZSTD", "rocketmq": "ZSTD"},
    ),
    "narrow": Corpus("1 KB, five properties, in batches, one partition", partitions=1),
    "wide": Corpus("1 KB, five properties, one by one, 64 partitions", batch=1, partitions=64),
}
ORDINARY = ("ordinary", "single")
"""What is measured unless others are asked for."""
