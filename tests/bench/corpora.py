"""Corpora of the benchmarks: random messages that the official Java clients write, by the options of `BenchCorpus.java`.

Together they cover single sends and batches, messages with and without keys, 0 to 30 properties, non-ASCII text, unusual values,
payloads of 64 to 10,000 bytes, 1 to 64 partitions, and compression. The same seed gives the same messages.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

BATCH = 32


@dataclass(frozen=True, slots=True)
class Corpus:
    """The options of one corpus."""

    about: str
    """Description of the corpus in the pages."""
    payload: int = 1000
    """Maximum payload size in bytes."""
    payload_least: int | None = None
    """Minimum payload size; None means that all payloads have the maximum size. The logarithm of the size is uniform."""
    properties: int = 5
    properties_least: int | None = None
    names: int | None = None
    """Number of different property names; None means as many as a message has properties."""
    keyed: int = 100
    """Percentage of messages with a key."""
    typed: int = 100
    """Percentage of messages with a message type."""
    unicode: int = 20
    """Percentage of messages with non-ASCII text."""
    odd: int = 0
    """Percentage of messages with unusual values: empty, null, or reserved names."""
    batch: int = BATCH
    """Messages per send to RocketMQ, maximum messages per Pulsar batch; 1 means no batches. The TubeMQ client has no batches."""
    partitions: int = 8
    compression: dict[str, str] = field(default_factory=dict)
    """Compression by system; other systems do not compress."""

    def arguments(self, system: str) -> dict[str, Any]:
        """Return the arguments of the Java program BenchFill for a system."""
        options = asdict(self)
        for name in ("about", "partitions", "compression"):
            del options[name]
        return options | {"compression": self.compression.get(system)}


CORPORA = {
    "ordinary": Corpus("1 KB, five properties, in batches"),
    "single": Corpus("1 KB, five properties, sent one by one", batch=1),
    "bare": Corpus("100 B, no key, type or property, in batches", payload=100, properties=0, keyed=0, typed=0),
    "rich": Corpus("1 KB, 30 of 60 properties, names and values of all lengths, in batches", properties=30, names=60, unicode=60),
    "odd": Corpus(
        "64 B to 10 KB, 0 to 30 of 90 properties, some without key, a fifth unusual (empty, null, reserved names)",
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
"""Corpora that are measured by default."""
