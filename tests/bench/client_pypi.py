"""One run of the official Python client of Pulsar (PyPI `pulsar-client`), measured as `client_runs` measures ours.

Its work is done by threads of a C++ library; callbacks of sends come from one of them.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import pulsar

from tests.bench.client_runs import Meter


def produce(client: Any, settings: dict[str, Any], meter: Meter) -> None:
    """Send message by message; the client makes the batches."""
    producer = client.create_producer(
        settings["topic"],
        batching_enabled=True,
        batching_max_messages=settings["batch_messages"],
        batching_max_allowed_size_in_bytes=settings["batch_bytes"],
        batching_max_publish_delay_ms=settings["linger_ms"],
        max_pending_messages=settings["window"],
        block_if_queue_full=True,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    body, stored, failed, over = bytes(settings["size"]), 0, [], threading.Event()

    def done(result: Any, _: Any) -> None:
        nonlocal stored
        stored += 1
        if result != pulsar.Result.Ok:
            failed.append(result)
        if stored % 500 == 0:
            meter.add(500)
            if meter.figures:
                over.set()

    for _ in range(settings["messages"]):
        producer.send_async(body, done)
    producer.flush()
    assert over.wait(settings["deadline_s"]), "not all was stored in time"
    assert not failed, failed[0]


def consume(client: Any, settings: dict[str, Any], meter: Meter) -> None:
    """Consume with a thread per partition and cumulative acknowledgement per list: the cheapest way with this client."""
    lock = threading.Lock()

    def read(consumer: Any) -> None:
        size = 0
        while not meter.figures:
            messages = consumer.batch_receive()
            for message in messages:
                size += len(message.data())
            if messages:
                consumer.acknowledge_cumulative(messages[-1])
                with lock:
                    meter.add(len(messages))

    policy = pulsar.ConsumerBatchReceivePolicy(1000, 2 << 20, 20)
    threads = [
        threading.Thread(
            target=read,
            args=[
                client.subscribe(
                    partition,
                    settings["group"],
                    consumer_type=pulsar.ConsumerType.Failover,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=2000,
                    batch_receive_policy=policy,
                )
            ],
        )
        for partition in client.get_topic_partitions(settings["topic"])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(settings: dict[str, Any]) -> None:
    """Run the measurement that `settings["run"]` names, and print its figures."""
    meter = Meter(settings["messages"], settings["warmup"])
    client = pulsar.Client(settings["url"], logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, settings["log"]))
    (produce if settings["run"].endswith("produce") else consume)(client, settings, meter)
    print(json.dumps(meter.figures), flush=True)
    client.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
