"""The features, and the outcome of each that is right for every SDK and every server.

The outcomes were seen with a real broker, Pulsar 4.0.8.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Outcome = dict[str, Any]


class Feature(NamedTuple):
    """A feature, its right outcome, and what it needs."""

    outcome: Outcome
    partitions: int = 0
    """Its topic must have so many partitions."""
    deduplicates: bool = False
    """The server must deduplicate what named producers send."""
    encrypted: bool = False
    """It needs a pair of keys."""
    cuts: bool = False
    """Its connections are cut."""


PROPERTIES = {"plain": "1", "empty": "", "text": "ä€"}
DESCRIBED = [
    {
        "value": "0", "properties": PROPERTIES, "key": "k", "ordering_key": "o", "event_time": 1_700_000_000_123,
        "has_publish_time": True, "redeliveries": 0,
    },
    {
        "value": "1", "properties": {}, "key": None, "ordering_key": None, "event_time": 0, "has_publish_time": True,
        "redeliveries": 0,
    },
]  # fmt: skip
SPREAD = {"all_once": True, "both": True}
BY_CODEC = [10_000, *[100] * 10]
"""Lengths of a message that is alone and of those of a batch."""


def _texts(first: int, last: int, step: int = 1) -> list[str]:
    return [str(number) for number in range(first, last + 1, step)]


SENDING: dict[str, Feature] = {
    "single": Feature({"messages": DESCRIBED, "entries": 2}),
    "batched": Feature({"messages": DESCRIBED, "entries": 1, "indexes": [0, 1]}),
    "message_ids": Feature({"receipts_are_ids": True, "ascending": True, "bytes_make_ids": True}),
    "compression": Feature({"LZ4": BY_CODEC, "ZLIB": BY_CODEC, "ZSTD": BY_CODEC, "SNAPPY": BY_CODEC}),
    "chunked": Feature(
        {"size": 12_000_000, "same": True, "properties": PROPERTIES, "around": ["before", "after"], "left": 0}
    ),
    "encryption": Feature({"with_key": ["secret"] * 3, "hidden": True, "key_names": ["features"]}, encrypted=True),
    "producer_names": Feature({
        "names": [True] * 3, "sequence_ids": [101, 102, 103], "generated": True, "second": "busy", "last_sequence_id": 103,
    }),
    "deduplication": Feature({"received": _texts(1, 5), "last_sequence_id": 4}, deduplicates=True),
    "many": Feature({"received": 5000, "in_order": True, "left": []}),
    "exclusive_producer": Feature({"second": "refused", "after_close": ["first", "third"]}),
    "schema": Feature({"received": ["a", "b"], "has_version": True, "other_schema": "refused"}),
    "too_large": Feature({"error": "too large", "received": ["after"]}),
}  # fmt: skip

SHARING: dict[str, Feature] = {
    "exclusive": Feature({"second": "busy", "received": _texts(0, 2), "after_close": _texts(0, 2)}),
    "failover": Feature({"active": _texts(0, 4), "standby": [], "taken_over": _texts(3, 7), "noted": True}),
    "shared": Feature(SPREAD),
    "shared_zero_queue": Feature(SPREAD),
    "key_shared": Feature({**SPREAD, "one_member_per_key": True, "in_order": True}),
    "key_shared_sticky": Feature({
        "low": [0, 1, 2, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16, 18, 19], "high": [3, 5, 7, 9, 17],
    }),
    "unacknowledged": Feature({"received": _texts(0, 4), "same_ids": True}),
    "cancelled_receive": Feature({"cancelled": True, "received": _texts(0, 4), "racing": True}),
}  # fmt: skip

REDELIVERY: dict[str, Feature] = {
    "ack_individual": Feature({"again": _texts(1, 9, 2)}),
    "ack_cumulative": Feature({"again": _texts(5, 9)}),
    "ack_cumulative_in_batch": Feature({"again": _texts(5, 9)}),
    "ack_batch_index": Feature({"Exclusive": _texts(1, 9, 2), "Shared": _texts(1, 9, 2)}),
    "ack_whole_batch": Feature({"again": _texts(0, 4), "left": []}),
    "ack_receipts": Feature({"confirmed": 3, "again": _texts(3, 4)}),
    "negative_acks": Feature({"counts": {"0": [0], "1": [0, 1, 2], "2": [0], "3": [0, 1, 2]}, "left": []}),
    "negative_ack_in_batch": Feature({"counts": {"0": [0], "1": [0], "2": [0, 1], "3": [0], "4": [0]}, "left": []}),
    "dead_letters": Feature({
        "counts": {"0": [0], "1": [0, 1, 2], "2": [0]}, "dead": "1", "real_topic": True, "left": [],
    }),
    "retry_letters": Feature({"tries": [None, "1", "2"], "dead": "0", "left": []}),
    "delayed_shared": Feature({"received": ["now", "delayed"]}),
    "delayed_exclusive": Feature({"received": ["delayed", "now"]}),
    "delayed_ack": Feature({"first": _texts(0, 4), "again": ["delayed"]}),
}  # fmt: skip

POSITIONS: dict[str, Feature] = {
    "reader": Feature({
        "earliest": [*_texts(0, 5), "later"], "latest_had": False, "latest": ["later"],
        "after_id": ["4", "5", "later"], "from_id": ["3", "4", "5", "later"],
    }),
    "reader_in_batch": Feature({"after_id": ["4", "5"], "from_id": ["3", "4", "5"]}),
    "reader_seek": Feature({"first": _texts(0, 5), "after_seek": _texts(2, 5)}),
    "seek_by_id": Feature({"id": _texts(2, 5), "earliest": _texts(0, 5), "latest": []}),
    "seek_in_batch": Feature({"received": _texts(2, 5)}),
    "seek_by_time": Feature({"received": _texts(3, 5)}),
    "last_message_id": Feature({"single": True, "batch": True}),
    "initial_position": Feature({"earliest": _texts(0, 4), "latest": _texts(3, 4)}),
    "durable": Feature({"again": _texts(3, 5), "same_ids": True}),
    "unsubscribe": Feature({"again": _texts(0, 2)}),
    "pattern": Feature({"received": ["-a", "-b"]}),
    "pattern_new_topic": Feature({"before": ["-a"], "after": ["-b"]}),
    "partitioned": Feature(
        {"partitions": 3, "all_once": True, "spread": True, "in_order": True, "one_partition_per_key": True, "left": []},
        partitions=3,
    ),
    "broken_connection": Feature({"received": _texts(0, 14), "after": ["after"], "left": []}, cuts=True),
}  # fmt: skip

TOPICS = {"sending": SENDING, "sharing": SHARING, "redelivery": REDELIVERY, "positions": POSITIONS}
FEATURES = {name: feature for features in TOPICS.values() for name, feature in features.items()}

LACKS: dict[str, frozenset[str]] = {
    # Its option for the time between two looks for new topics is without effect; the time is a minute. A receive of its asyncio
    # client that is cancelled still takes a message, which nobody gets before the consumer is closed.
    "python": frozenset({"ack_receipts", "retry_letters", "pattern_new_topic", "cancelled_receive"}),
}
"""Features that an SDK does not have, by the name of its language."""

UNSEEN: dict[tuple[str, str], frozenset[str]] = {
    ("python", "producer_names"): frozenset({"sequence_ids"}),
    ("python", "failover"): frozenset({"noted"}),
    ("go", "producer_names"): frozenset({"sequence_ids"}),
    ("go", "deduplication"): frozenset({"last_sequence_id"}),
    ("go", "schema"): frozenset({"has_version"}),
    ("go", "seek_by_id"): frozenset({"earliest", "latest"}),
}
"""Values that the program of an SDK cannot give, by language and feature."""


def features_of(language: str, topic: str | None = None) -> list[str]:
    """Return the names of the features that an SDK has, or of those of one topic."""
    lacking = LACKS.get(language.partition("-")[0], frozenset())
    return [name for name in (TOPICS[topic] if topic else FEATURES) if name not in lacking]


def expected_outcome(feature: str, language: str) -> Outcome:
    """Return the right outcome, without the values that the program of this SDK cannot give."""
    unseen = UNSEEN.get((language.partition("-")[0], feature), frozenset())
    return {name: value for name, value in FEATURES[feature].outcome.items() if name not in unseen}
