"""Finds the master of a queue after an error, with a refreshed route if the error puts the known one in doubt."""

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ServerRefused, Unreachable
from mqbridge.rocketmq.client.route import queue_label
from mqbridge.rocketmq.client.sender_context import SenderContext
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status


class QueueGone(ClusterError):
    """The queue no longer exists: choose another."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, Failure.REFRESH)


async def locate(context: SenderContext, queue: Queue, error: MqbridgeError | None) -> str:
    """Return the address of the queue's master after this error. Raises QueueGone, ClusterError."""
    topic, routes = queue.topic, context.client.routes
    if isinstance(error, Unreachable):
        routes.invalidate_and_switch_server(topic)
    elif isinstance(error, ConnectionLost) or (isinstance(error, ClusterError) and error.failure is not Failure.RETRY):
        routes.invalidate(topic)
    missing = isinstance(error, ServerRefused) and error.code == Status.TOPIC_NOT_EXIST
    route = await context.route(missing=missing)
    address = route.master(queue.broker)
    if address is None:
        raise ClusterError(f"the route of {topic} names no master of {queue.broker} now", Failure.REFRESH)
    if not route.takes(queue):
        raise QueueGone(f"{queue_label(queue)} no longer accepts messages: the topic shrank, or its broker is being emptied")
    return address
