"""A queue of a topic at a broker (Java's MessageQueue), as a value in lists and as a key in maps."""

from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.fastjson import as_int64, as_members, as_text, loads


class Queue(NamedTuple):
    """A queue; equal to any tuple of its topic, broker name and queue id."""

    topic: str
    broker: str
    id: int


def queue_body(queue: tuple[str, str, int]) -> dict[str, Any]:
    """Return the JSON object of a queue."""
    topic, broker, number = queue
    return {"brokerName": broker, "queueId": number, "topic": topic}


def queue_of(value: Any) -> Queue:
    """Return the queue of a JSON object; null or missing members count as empty or 0. Raises TypeError without a `topic`."""
    members = as_members(value)
    if "topic" not in value:
        raise TypeError(f"{str(value)[:80]} is not a queue, because it has no topic")
    return Queue(as_text(members.get("topic", "")), as_text(members.get("brokerName", "")), as_int64(members.get("queueId", 0)))


def queue_key(queue: tuple[str, str, int]) -> str:
    """Return a queue as a key of standard JSON: its JSON object as a string. Java reads it like an unquoted object."""
    return orjson.dumps(queue_body(queue)).decode()


def queue_of_key(key: str) -> Queue:
    """Return the queue of a key as `fastjson` returns it: the text of the queue's JSON object."""
    return queue_of(loads(key.encode()))
