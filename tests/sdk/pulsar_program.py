"""Produces or consumes with the official Python client for Pulsar; run as a program, because the client has threads of its own.

python pulsar_program.py produce URL TOPIC FIRST COUNT RATE [NAME]        prints the number of each stored message
python pulsar_program.py consume URL TOPIC SUBSCRIPTION TYPE COUNT [IDLE] prints and acknowledges each message, until COUNT
python pulsar_program.py batch URL TOPIC SIZE [SIZE ...]                  sends one compressed batch; prints the results
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import pulsar

SIZE = 200
SEND_TIMEOUT_MS = 120_000
BATCH_TIMEOUT_MS = 30_000
WINDOW = 500
RECEIVE_WAIT_MS = 500
IDLE_S = 30.0


def body(number: int) -> bytes:
    """Return a body as those of the Java programs: it begins with the number."""
    return number.to_bytes(8, "big") + bytes(SIZE - 8)


def produce(url: str, topic: str, first: int, count: int, rate: float, name: str | None) -> None:
    """Send messages and print the numbers of those that are stored."""
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))
    producer = client.create_producer(
        topic,
        producer_name=name,
        initial_sequence_id=first - 1 if name else None,
        send_timeout_millis=SEND_TIMEOUT_MS,
        batching_enabled=True,
        batching_max_publish_delay_ms=10,
        block_if_queue_full=True,
    )
    window, lock, problems = threading.Semaphore(WINDOW), threading.Lock(), []

    def stored(number: int) -> Any:
        def done(result: Any, _: Any) -> None:
            with lock:
                if result != pulsar.Result.Ok:
                    problems.append(f"{number}: {result}")
                else:
                    print(json.dumps({"stored": number}), flush=True)
            window.release()

        return done

    began = time.monotonic()
    for number in range(first, first + count):
        time.sleep(max(0.0, began + (number - first) / rate - time.monotonic()))
        window.acquire()
        producer.send_async(body(number), stored(number), sequence_id=number if name else None)
    producer.flush()
    client.close()
    if problems:
        sys.exit(f"{len(problems)} messages were not stored: {problems[:3]}")


def send_batch(url: str, topic: str, sizes: list[int]) -> None:
    """Send one batch whose messages have these sizes, numbered from 0, and print how each send ended."""
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))
    producer = client.create_producer(
        topic,
        send_timeout_millis=BATCH_TIMEOUT_MS,
        compression_type=pulsar.CompressionType.LZ4,
        batching_enabled=True,
        batching_max_messages=len(sizes),
        batching_max_allowed_size_in_bytes=2 * sum(sizes),
        batching_max_publish_delay_ms=5000,
    )
    ended = threading.Semaphore(0)

    def done(result: Any, _: Any) -> None:
        print(json.dumps({"result": str(result)}), flush=True)
        ended.release()

    for number, size in enumerate(sizes):
        producer.send_async(number.to_bytes(8, "big") + bytes(size - 8), done)
    for _ in sizes:
        ended.acquire()
    client.close()


def consume(url: str, topic: str, subscription: str, type_: str, count: int, idle_s: float) -> None:
    """Print and acknowledge messages until `count` different ones came, or none for `idle_s` seconds."""
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, "/dev/null"))
    consumer = client.subscribe(
        topic, subscription, getattr(pulsar.ConsumerType, type_), initial_position=pulsar.InitialPosition.Earliest
    )
    numbers: set[int] = set()
    last = time.monotonic()
    while len(numbers) < count and time.monotonic() - last < idle_s:
        try:
            message = consumer.receive(RECEIVE_WAIT_MS)
        except pulsar.Timeout:
            continue
        last = time.monotonic()
        number = int.from_bytes(message.data()[:8], "big")
        numbers.add(number)
        print(json.dumps({"number": number, "at": time.time_ns() // 1000}), flush=True)
        consumer.acknowledge(message)
    consumer.close()
    client.close()


def main(arguments: list[str]) -> None:
    """Run what the arguments name."""
    kind, url, topic, *rest = arguments
    if kind == "produce":
        first, count, rate, *name = rest
        produce(url, topic, int(first), int(count), float(rate), name[0] if name else None)
    elif kind == "batch":
        send_batch(url, topic, [int(each) for each in rest])
    else:
        subscription, type_, count, *idle = rest
        consume(url, topic, subscription, type_, int(count), float(idle[0]) if idle else IDLE_S)


if __name__ == "__main__":
    main(sys.argv[1:])
