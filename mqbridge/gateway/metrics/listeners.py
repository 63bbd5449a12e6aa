"""Metrics of listeners: their state, their connections, and what they have received and delivered."""

from collections.abc import Callable, Iterator

from mqbridge.gateway.listeners import ListenerRunner
from mqbridge.gateway.metrics.family import Family, MeteredGateway, Samples
from mqbridge.listener.listener import ListenerState

LISTENER = ("listener",)
"""The labels of a metric with one sample per listener."""


def _is_serving(runner: ListenerRunner) -> float:
    return runner.state is ListenerState.SERVING


_METRICS: tuple[tuple[str, str, str, str, Callable[[ListenerRunner], float]], ...] = (
    (
        "listener_up",
        "gauge",
        "1 while the listener serves clients, 0 while it waits for its clusters or drains",
        "Look here first: at 0, `/health/ready` has the reason under `listeners`.",
        _is_serving,
    ),
    (
        "listener_connections",
        "gauge",
        "Open connections of clients",
        "Near `limits.connections`: more are refused.",
        lambda runner: len(runner.listener.port.connections),
    ),
    (
        "listener_refused_connections",
        "counter",
        "Connections that were refused because there were too many",
        "It grows: raise `limits.connections`, or find the client that does not close its own.",
        lambda runner: runner.listener.port.refused,
    ),
    (
        "listener_refused_requests",
        "counter",
        "Requests of clients that were refused",
        "It grows: the clients' own logs have the reasons.",
        lambda runner: runner.listener.server.counts.refused_requests,
    ),
    (
        "listener_producers",
        "gauge",
        "Producers that clients have open",
        "How many send here?",
        lambda runner: runner.listener.server.counts.producers,
    ),
    (
        "listener_consumers",
        "gauge",
        "Consumers and readers that clients have open",
        "How many read here?",
        lambda runner: runner.listener.server.counts.consumers,
    ),
    (
        "listener_received_messages",
        "counter",
        "Messages that clients have sent",
        "The rate of what comes in.",
        lambda runner: runner.listener.server.counts.received_messages,
    ),
    (
        "listener_received_bytes",
        "counter",
        "Bytes of the messages that clients have sent",
        "The rate of what comes in.",
        lambda runner: runner.listener.server.counts.received_bytes,
    ),
    (
        "listener_delivered_messages",
        "counter",
        "Messages that were delivered to clients; each delivery counts",
        "The rate of what goes out.",
        lambda runner: runner.listener.server.counts.delivered_messages,
    ),
    (
        "listener_delivered_bytes",
        "counter",
        "Bytes of the messages that were delivered to clients",
        "The rate of what goes out.",
        lambda runner: runner.listener.server.counts.delivered_bytes,
    ),
    (
        "listener_redelivered_messages",
        "counter",
        "Messages that were delivered again",
        "It grows: consumers fail, are slow to acknowledge, or lose their connections.",
        lambda runner: runner.listener.server.counts.redelivered_messages,
    ),
    (
        "listener_parked_messages",
        "counter",
        "Messages that are due later and were parked",
        "How many wait? Compare it with `mqbridge_listener_due_messages_total`, over all gateways with the same `parking`.",
        lambda runner: runner.listener.parking.parked,
    ),
    (
        "listener_due_messages",
        "counter",
        "Parked messages that this gateway has brought back, because they are due",
        "It stands still while messages are due: the log says why the parking topics are not read.",
        lambda runner: runner.listener.parking.brought_back,
    ),
    (
        "listener_dead_letters",
        "counter",
        "Messages that the cluster has rejected and that were stored as dead letters",
        "It grows: read the dead-letter topic of the listener.",
        lambda runner: runner.listener.publishers.dead_letters,
    ),
    (
        "listener_in_flight_bytes",
        "gauge",
        "Bytes that clients have sent and that are not stored yet",
        "Near `limits.in_flight_bytes`: the cluster is slow, and clients wait.",
        lambda runner: runner.listener.in_flight.used,
    ),
    (
        "listener_unacknowledged_bytes",
        "gauge",
        "Bytes that are read for consumers and not acknowledged",
        "Near `limits.unacknowledged_bytes`: consumers are slow, and get nothing more.",
        lambda runner: runner.listener.unacknowledged.used,
    ),
)
"""Name, kind, description, when to look at it, and how it is read."""


def listeners() -> Iterator[Family]:
    """Yield the metrics of listeners."""
    for name, kind, description, when_to_look, read in _METRICS:
        yield Family(f"mqbridge_{name}", kind, LISTENER, description, when_to_look, _of_listeners(read))


def _of_listeners(read: Callable[[ListenerRunner], float]) -> Callable[[MeteredGateway], Samples]:
    """Return a function that reads one sample per listener."""
    return lambda gateway: [((runner.name,), read(runner)) for runner in gateway.listeners]
