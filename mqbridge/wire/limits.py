"""Limits of numbers and texts that peers send, for all systems.

A number in a response can be much larger than the response: "4000000000 partitions" takes five bytes. So it is compared with one
of these limits before anything is made of it, and a higher number is an error. The limits are far above what clusters have.
"""

from mqbridge.errors import RemoteProtocolError

MAX_PARTITIONS = 100_000
"""Limit of a topic's partitions (queues), at all its brokers together. Large clusters have a tenth of this."""
MAX_LISTED_PARTITIONS = 1_000_000
"""Limit of the partitions of all topics in one response; each takes about 300 bytes of memory."""
MAX_TOPICS = 200_000
"""Limit of the topics (at Pulsar: of their partitions) in one list. Clusters with more need namespaces or patterns anyway."""
MAX_DIGITS = 18
"""Limit of the digits of a number in a text: it then fits in 64 bits. Python itself raises ValueError above 4300 digits."""
MAX_SHOWN_CHARS = 2000
"""Limit of a peer's text in an error or log line."""


def check_partitions(count: int, topic: str, limit: int = MAX_PARTITIONS) -> None:
    """Raise RemoteProtocolError if a peer announces an impossible number of partitions of a topic."""
    if not 0 <= count <= limit:
        announced = f"{shorten(str(count), 40)} partitions of {shorten(topic, 200)}"
        raise RemoteProtocolError(f"the server announces {announced}; at most {limit} are supported")


def check_topics(count: int, listed: str) -> None:
    """Raise RemoteProtocolError if a peer lists impossibly many topics; `listed` names the list."""
    if count > MAX_TOPICS:
        raise RemoteProtocolError(f"the server lists {count} {listed}; at most {MAX_TOPICS} are supported")


def is_number(text: str) -> bool:
    """Return True for a number without sign that fits in 64 bits, written in ASCII digits."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def shorten(text: str, limit: int = MAX_SHOWN_CHARS) -> str:
    """Return a peer's text for an error or log line; of a longer one only the first `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
