"""The features of RocketMQ as programs of the official C++ client, one process per feature: see the package.

PyPI's `rocketmq` wraps the C interface of the client, and must be found by PYTHONPATH. A new group begins at the end of a topic,
which cannot be changed: a broker lets it begin at the first message while the topic is young.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rocketmq.client import Message, MessageModel, Producer, PullConsumer, PushConsumer, RecvMessage, dll, ffi_check

Outcome = dict[str, Any]

PATIENCE_S = 150.0
"""The broker waits for 10 s and for 30 s before it sends a refused message again; the client does not let it be changed."""
QUIET_S = 1.5
"""If no message arrives in this time, no further one is expected."""
POLL_S = 0.05
SUCCESS, LATER = 0, 1
KEYS, ROUNDS, MESSAGES, ROUND = 5, 10, 40, 20
LARGE_BYTES = 4_000_000


class CppMessage(NamedTuple):
    """A copy of a message, which the client frees after its callback."""

    topic: str
    value: str
    tags: str | None
    keys: str | None
    properties: dict[str, str]
    tries: int
    queue: int
    offset: int
    id: str
    retry_topic: str | None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def copied(message: RecvMessage) -> CppMessage:
    properties = {name: _text(message[name]) or "" for name in ("plain", "text") if message[name]}
    return CppMessage(
        message.topic, message.body.decode(), _text(message.tags), _text(message.keys), properties, message.reconsume_times,
        message.queue_id, message.queue_offset, message.id, _text(message["RETRY_TOPIC"]),
    )  # fmt: skip


def until(what: str, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(POLL_S)


class CppMember:
    """A push consumer that keeps its messages."""

    def __init__(
        self, run: CppRun, suffix: str = "", accepts: Callable[[CppMessage], bool] = lambda _: True, **options: Any
    ) -> None:
        self.messages: list[CppMessage] = []
        self._accepts = accepts
        self.consumer = PushConsumer(run.group + suffix, **options)
        self.consumer.set_namesrv_addr(run.name_servers)
        self.consumer.set_instance_name(run.instance())

    def start(self, topic: str, tags: str = "*") -> CppMember:
        # The wrapper's own `subscribe` cannot refuse messages: it loses the callback's answer.
        ffi_check(dll.Subscribe(self.consumer._handle, topic.encode(), tags.encode()))
        self.consumer._register_callback(self._received)
        self.consumer.start()
        return self

    def _received(self, _: int, handle: int) -> int:
        message = copied(RecvMessage(handle))
        self.messages.append(message)
        return SUCCESS if self._accepts(message) else LATER

    def receive(self, count: int) -> list[CppMessage]:
        """Wait for so many messages, and then until no further one is expected."""
        until(f"{count} messages", lambda: len(self.messages) >= count)
        time.sleep(QUIET_S)
        return self.messages

    def tries(self) -> dict[str, list[int]]:
        found = defaultdict(list)
        for message in self.messages:
            found[message.value].append(message.tries)
        return found


class CppRun:
    """Options of the program, and short forms of the client's calls. Topics and groups are the run's own, by a suffix."""

    def __init__(self, name_servers: str, topic: str, group: str) -> None:
        self.name_servers, self.topic, self.group = name_servers, topic, group
        self._instances = 0
        self._open: list[object] = []
        """Clients that must not be destroyed before the end."""

    def instance(self) -> str:
        """Return the name of a client with connections and a client id of its own."""
        self._instances += 1
        return f"{self.group}_{self._instances}"

    def producer(self) -> Producer:
        producer = Producer(f"{self.group}_producer_{self.instance()}", timeout=15_000, max_message_size=4 << 20)
        producer.set_namesrv_addr(self.name_servers)
        producer.start()
        self._open.append(producer)
        return producer

    def message(self, value: object, tags: str | None = None) -> Message:
        message = Message(self.topic)
        message.set_body(str(value))
        if tags is not None:
            message.set_tags(tags)
        return message

    def described(self, value: object) -> Message:
        message = self.message(value, "tag")
        message.set_keys("key1 key2")
        message.set_property("plain", "1")
        message.set_property("text", "ä€ = 2")
        return message

    def send(self, values: Iterable[object]) -> None:
        producer = self.producer()
        for value in values:
            producer.send_sync(self.message(value))

    def member(
        self, suffix: str = "", accepts: Callable[[CppMessage], bool] = lambda _: True, tags: str = "*", **options: Any
    ) -> CppMember:
        member = CppMember(self, suffix, accepts, **options)
        self._open.append(member)
        return member.start(self.topic, tags)

    def read(self, count: int) -> list[CppMessage]:
        """Pull all queues of the topic until so many messages are found, and once more."""
        consumer = PullConsumer(f"{self.group}_reader_{self.instance()}")
        consumer.set_namesrv_addr(self.name_servers)
        consumer.start()
        self._open.append(consumer)
        messages: list[CppMessage] = []

        def complete() -> bool:
            before = len(messages)
            messages.extend(map(copied, consumer.pull(self.topic)))
            return before >= count

        until(f"{count} messages", complete)
        return messages


def is_range(messages: Iterable[CppMessage], count: int) -> bool:
    return sorted(int(message.value) for message in messages) == list(range(count))


def in_order(messages: Iterable[CppMessage]) -> bool:
    by_queue = defaultdict(list)
    for message in messages:
        by_queue[message.queue].append(int(message.value))
    return all(values == sorted(values) for values in by_queue.values())


def values(messages: Iterable[CppMessage]) -> list[str]:
    return sorted(message.value for message in messages)


def describe(messages: Iterable[CppMessage]) -> list[Outcome]:
    names = ("value", "tags", "keys", "properties", "tries")
    return [{name: getattr(message, name) for name in names} for message in messages]


# --- sending ---------------------------------------------------------------------------------------------------------------


def send(run: CppRun) -> Outcome:
    producer, results = run.producer(), []
    producer.send_async(run.described("async"), results.append, None)
    until("an asynchronous result", lambda: results)
    results.append(producer.send_sync(run.described("sync")))
    producer.send_oneway(run.described("oneway"))
    read = sorted(run.read(3), key=lambda message: message.value)
    same = all(
        (result.msg_id, result.offset) == (message.id, message.offset) for result, message in zip(results, read[::2], strict=True)
    )
    return {"messages": describe(read), "results_are_of_messages": same}


def selector(run: CppRun) -> Outcome:
    producer = run.producer()
    for value in range(KEYS * ROUNDS):
        producer.send_orderly(run.message(value), value % KEYS)
    read = run.read(KEYS * ROUNDS)
    queues = defaultdict(set)
    for message in read:
        queues[int(message.value) % KEYS].add(message.queue)
    return {
        "all_once": is_range(read, KEYS * ROUNDS), "in_order": in_order(read),
        "one_queue_per_key": all(len(each) == 1 for each in queues.values()),
    }  # fmt: skip


def compressed(run: CppRun) -> Outcome:
    sent = ["x" * size for size in (4095, 4096, 20_000)]
    run.send(sent)
    read = values(run.read(len(sent)))
    return {"sizes": list(map(len, read)), "same": read == sent}


def large(run: CppRun) -> Outcome:
    body = random.Random(1).randbytes(LARGE_BYTES // 2).hex()
    run.send([body])
    read = run.read(1)[0].value
    return {"size": len(read), "same": read == body}


def delay_level(run: CppRun) -> Outcome:
    arrivals: list[float] = []

    def accepts(_: CppMessage) -> bool:
        arrivals.append(time.time())
        return True

    member = run.member(accepts=accepts)
    producer, message = run.producer(), run.described("delayed")
    message.set_delay_time_level(2)
    earliest = time.time() + 5
    producer.send_sync(message)
    producer.send_sync(run.message("now"))
    received = member.receive(2)
    return {
        "received": [message.value for message in received], "early": arrivals[1] < earliest, "tags": received[1].tags,
    }  # fmt: skip


# --- delivery --------------------------------------------------------------------------------------------------------------


def push(run: CppRun) -> Outcome:
    run.send(range(MESSAGES // 2))
    member = run.member()
    member.receive(MESSAGES // 2)
    run.send(range(MESSAGES // 2, MESSAGES))
    return {"all_once": is_range(member.receive(MESSAGES), MESSAGES)}


def retry(run: CppRun) -> Outcome:
    """Of refused messages that come together, the C interface does not give those behind one that is refused again."""
    accepted_after = {"accepted": 0, "refused": 2, "thrown": 1}
    member = run.member(accepts=lambda message: message.tries >= accepted_after[message.value])
    producer = run.producer()
    for value in accepted_after:
        message = run.message(value, "tag")
        message.set_keys("key")
        message.set_property("plain", "1")
        producer.send_sync(message)
        member.receive(1)
    received = member.receive(6)
    refused = [message for message in received if message.value == "refused"]
    return {
        "tries": member.tries(), "topics": all(message.topic == run.topic for message in received),
        "ids": len({message.id for message in refused}),
        "retry_topics": [message.retry_topic == run.topic for message in refused],
        "tags": [message.tags for message in refused], "keys": [message.keys for message in refused],
        "properties": [message.properties["plain"] for message in refused],
    }  # fmt: skip


def orderly(run: CppRun) -> Outcome:
    run.send(range(MESSAGES))
    received = run.member(orderly=True).receive(MESSAGES)
    return {"all_once": is_range(received, MESSAGES), "in_order": in_order(received)}


def tags(run: CppRun) -> Outcome:
    producer = run.producer()
    for tag in "abca":
        producer.send_sync(run.message(tag, tag))
    producer.send_sync(run.message("none"))
    counts = {"a || b": 3, "c": 1, "*": 5}
    members = {each: run.member(f"_{number}", tags=each) for number, each in enumerate(counts)}
    return {each: values(members[each].receive(count)) for each, count in counts.items()}


# --- groups ----------------------------------------------------------------------------------------------------------------


def rebalance(run: CppRun) -> Outcome:
    """The client does not show which queues it has: messages are sent until all have got some."""
    members = [run.member(), run.member()]

    def share(all_members: list[CppMember]) -> None:
        before = [len(member.messages) for member in all_members]

        def shared() -> bool:
            run.send(range(4))
            return all(len(member.messages) > count for member, count in zip(all_members, before, strict=True))

        until("messages for every member", shared)

    share(members)
    members.append(run.member())
    share(members)
    members.pop(0).consumer.shutdown()
    share(members)
    return {"all_members": True}


def broadcast(run: CppRun) -> Outcome:
    members = [run.member(message_model=MessageModel.BROADCASTING) for _ in range(2)]
    run.send(range(ROUND))
    return {"all_once": [is_range(member.receive(ROUND), ROUND) for member in members]}


def resume(run: CppRun) -> Outcome:
    run.send(range(ROUND))
    first = run.member()
    first.receive(ROUND)
    first.consumer.shutdown()
    run.send("abcd")
    second = run.member()
    return {"first": is_range(first.messages, ROUND), "second": values(second.receive(4))}


def two_groups(run: CppRun) -> Outcome:
    members = [run.member("_a"), run.member("_b")]
    run.send(range(ROUND))
    return {"all_once": [is_range(member.receive(ROUND), ROUND) for member in members]}


FEATURES: dict[str, Callable[[CppRun], Outcome]] = {
    "send": send, "selector": selector, "compressed": compressed, "large": large, "delay_level": delay_level,
    "push": push, "retry": retry, "orderly": orderly, "tags": tags, "rebalance": rebalance, "broadcast": broadcast,
    "resume": resume, "two_groups": two_groups,
}  # fmt: skip


def main() -> None:
    """Run one feature. The process ends at once: threads of the client still call back."""
    parser = argparse.ArgumentParser()
    for name in ("name-servers", "feature", "topic", "group", "folder", "deadline"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    threading.Timer(float(options.deadline), os._exit, [1]).start()
    status = 1
    try:
        outcome = FEATURES[options.feature](CppRun(options.name_servers, options.topic, options.group))
        print(json.dumps({"outcome": outcome}), flush=True)
        status = 0
    finally:
        if failure := sys.exception():
            sys.excepthook(type(failure), failure, failure.__traceback__)
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
