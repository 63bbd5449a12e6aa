"""MessageQueue: the queue of a topic at a broker, a value in lists and a key in maps."""

from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.lenient import loads, members_of, text, whole


class Queue(NamedTuple):
    """A queue, equal to any other tuple of topic, broker name and number."""

    topic: str
    broker: str
    id: int


def queue_body(queue: tuple[str, str, int]) -> dict[str, Any]:
    """The object that stands for a queue."""
    topic, broker, number = queue
    return {"brokerName": broker, "queueId": number, "topic": topic}


def queue_of(value: Any) -> Queue:
    """The queue that an object stands for."""
    members = members_of(value)
    if "topic" not in value:
        raise TypeError(f"{str(value)[:80]} is not a queue")
    return Queue(text(members.get("topic", "")), text(members.get("brokerName", "")), whole(members.get("queueId", 0)))


def queue_key(queue: tuple[str, str, int]) -> str:
    """A queue as the key of a map in standard JSON: the object in a string. Java reads it like a bare object."""
    return orjson.dumps(queue_body(queue)).decode()


def queue_of_key(key: str) -> Queue:
    """The queue of a map's key, whichever way it was written."""
    return queue_of(loads(key.encode()))
