"""The features, and the outcome of each that is right for every SDK and every server.

The outcomes were seen with a real broker, RocketMQ 5.3.3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Outcome = dict[str, Any]


class ClientFeature(NamedTuple):
    """A feature, its right outcome, and what it needs."""

    outcome: Outcome
    suffixes: tuple[str, ...] = ("",)
    """Suffixes of the topics that must exist."""
    retries: bool = False
    """Its group needs a retry topic."""


FLAGS = [7, 7, 7]
PROPERTIES = {"plain": "1", "text": "ä€ = 2"}


def _described(*values: str) -> list[dict[str, Any]]:
    return [{"value": value, "tags": "tag", "keys": "key1 key2", "properties": PROPERTIES, "tries": 0} for value in values]


def _texts(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


SENDING: dict[str, ClientFeature] = {
    "send": ClientFeature({"messages": _described("async", "oneway", "sync"), "flags": FLAGS, "results_are_of_messages": True}),
    "batch": ClientFeature({"messages": _described("0", "1", "2"), "flags": FLAGS, "offsets": [0, 1, 2], "queues": 1}),
    "selector": ClientFeature({"queues": 4, "all_once": True, "in_order": True, "one_queue_per_key": True}),
    "compressed": ClientFeature({"sizes": [4095, 4096, 20_000], "same": True}),
    "large": ClientFeature({"size": 4_000_000, "same": True}),
    "delay_level": ClientFeature({"received": ["now", "delayed"], "early": False, "tags": "tag"}),
    "timer": ClientFeature({"received": ["now", "delayed"], "early": False, "tags": "tag"}),
    "transaction": ClientFeature({
        "first": ["committed"], "received": ["checked", "committed"], "checked": ["checked", "checked and refused"],
        "tags": ["tag", "tag"],
    }),
    "request_reply": ClientFeature({"reply": "reply to request"}),
    "query": ClientFeature({
        "even": ["0", "2"], "two": ["0", "2"], "odd": ["1", "3"], "unknown": [], "by_id": "1", "by_offset_id": "2",
    }),
    "trace": ClientFeature({"kinds": ["Pub", "SubAfter", "SubBefore"]}, suffixes=("", "_trace")),
}  # fmt: skip

DELIVERY: dict[str, ClientFeature] = {
    "push": ClientFeature({"all_once": True}),
    "retry": ClientFeature({
        "tries": {"accepted": [0], "refused": [0, 1, 2], "thrown": [0, 1]}, "topics": True, "ids": 1,
        "retry_topics": [False, True, True], "tags": ["tag"] * 3, "keys": ["key"] * 3, "properties": ["1"] * 3,
    }, retries=True),
    "dead_letters": ClientFeature({
        "tries": {"accepted": [0], "refused": [0, 1]}, "dead": ["refused"], "tags": "tag", "keys": "key", "retry_topic": True,
    }, retries=True),
    "orderly": ClientFeature({"all_once": True, "in_order": True}),
    "orderly_suspended": ClientFeature({"received": ["0", "1", "2", "2", "2", "3", "4"], "tries": [0, 1, 2]}),
    "tags": ClientFeature({"a || b": ["a", "a", "b"], "c": ["c"], "*": ["a", "a", "b", "c", "none"]}),
    "flow_control": ClientFeature({"all_once": True, "in_order": True}),
}  # fmt: skip

GROUPS: dict[str, ClientFeature] = {
    "rebalance": ClientFeature({"queues": [[2, 2], [1, 1, 2], [2, 2]], "all_once": True, "all_members": True}),
    "broadcast": ClientFeature({"all_once": [True, True]}),
    "resume": ClientFeature({"first": True, "second": ["a", "b", "c", "d"]}),
    # A broker answers offset 0 for a group without an offset while the first message of the queue is in memory, so the position
    # that the client wants is used only in queues that are empty or older.
    "starts": ClientFeature({"first": _texts(0, 3), "last": _texts(0, 3), "timestamp": _texts(0, 3)}),
    "start_last_empty": ClientFeature({"received": _texts(0, 3)}),
    "two_groups": ClientFeature({"all_once": [True, True]}),
}

PULLING: dict[str, ClientFeature] = {
    "lite_subscribe": ClientFeature({"all_once": True, "again": ["a", "b", "c", "d"]}),
    "lite_assign": ClientFeature({
        "first": _texts(0, 4), "after_seek": ["3", "4"], "from_begin": _texts(0, 4), "from_end": ["later"],
    }),
    "pull": ClientFeature({
        "from_2": ["FOUND", ["2", "3"], 4], "odd": ["FOUND", ["1", "3"], 5], "unmatched": ["NO_MATCHED_MSG", [], 5],
        "at_end": ["NO_NEW_MSG", [], 5], "beyond": ["OFFSET_ILLEGAL", [], 5], "empty_queue": ["NO_NEW_MSG", [], 0],
    }),
    "offsets": ClientFeature({
        "min": 0, "max": 5, "at_time": 3, "before_time": 0, "after_time": 5, "empty_max": 0, "committed": 3, "not_committed": -1,
    }),
}  # fmt: skip

TOPICS = {"sending": SENDING, "delivery": DELIVERY, "groups": GROUPS, "pulling": PULLING}
FEATURES = {name: feature for features in TOPICS.values() for name, feature in features.items()}

SMOKE_TESTED = ("send", "transaction", "retry", "rebalance", "pull")
"""The features that are tried with every test run, in one language."""

LACKS: dict[str, frozenset[str]] = {
    "java-5.3.3": frozenset(),
    "java-4.9.8": frozenset({"timer"}),
    "go": frozenset({"timer", "query", "lite_assign", "offsets"}),
    # The Python package has few settings of consumers, and a broker stores a batch of this client as one message.
    "cpp": frozenset({
        "batch", "timer", "transaction", "request_reply", "query", "trace", "dead_letters", "orderly_suspended", "flow_control",
        "starts", "start_last_empty", "lite_subscribe", "lite_assign", "pull", "offsets",
    }),
}  # fmt: skip
"""Features that an SDK does not have."""

UNSEEN: dict[tuple[str, str], frozenset[str]] = {
    ("go", "rebalance"): frozenset({"all_once"}),
    ("cpp", "rebalance"): frozenset({"all_once", "queues"}),
    ("cpp", "send"): frozenset({"flags"}),
    ("cpp", "selector"): frozenset({"queues"}),
}
"""Values that the program of an SDK cannot give, by language and feature."""


def features_of(language: str, topic: str | None = None) -> list[str]:
    """Return the names of the features that an SDK has, or of those of one topic."""
    return [name for name in (TOPICS[topic] if topic else FEATURES) if name not in LACKS[language]]


def expected_outcome(feature: str, language: str) -> Outcome:
    """Return the right outcome, without the values that the program of this SDK cannot give."""
    unseen = UNSEEN.get((language, feature), frozenset())
    return {name: value for name, value in FEATURES[feature].outcome.items() if name not in unseen}
