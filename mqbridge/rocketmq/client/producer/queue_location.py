"""Finds the master of a queue before sends to it. After errors that an old route may cause, the route is queried again first."""

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError, ServerRefused, Unreachable
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.client.producer.sender_context import SenderContext
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Status


class QueueRemoved(ClusterError):
    """The queue no longer accepts messages; the caller must choose another one."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, Failure.REFRESH)


class QueueFrozen(ClusterError):
    """The queue accepts no messages now, because the permission to write was taken away; it may be given back."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, Failure.REFRESH)


async def locate(context: SenderContext, queue: Queue, error: MqbridgeError | None) -> str:
    """Return the address of the queue's master; `error` is the last failure of a send, a `locate` or a connect, if any.

    Raises QueueRemoved, QueueFrozen, ClusterError (REFRESH: try again later) if the broker has no master now, and errors of
    `context.route`. Without `context.fail_behind` no order binds sends to a frozen queue: it counts as removed while another
    queue is writable.
    """
    topic, routes = queue.topic, context.client.routes
    if isinstance(error, Unreachable):  # perhaps the current name server has not noticed yet that the broker moved
        routes.invalidate_and_switch_server(topic)
    # After an error with RETRY, for example of a busy broker, the route is still right.
    elif isinstance(error, ConnectionLost) or (isinstance(error, ClusterError) and error.failure is not Failure.RETRY):
        routes.invalidate(topic)
    is_topic_missing = isinstance(error, ServerRefused) and error.code == Status.TOPIC_NOT_EXIST
    route = await context.route(missing=is_topic_missing)  # if True and no name server knows it: FATAL
    address = route.master(queue.broker)
    if address is None:
        raise ClusterError(f"the route of topic {topic} contains no master of broker {queue.broker} now", Failure.REFRESH)
    if queue in route.frozen_queues and (context.fail_behind or not route.write_queues()):
        problem = f"queue {queue_label(queue)} accepts no messages now: its topic or its broker has no permission to write"
        raise QueueFrozen(f"{problem} (mqadmin updateTopicPerm, brokerPermission, wipeWritePerm)")
    if not route.is_writable(queue):
        raise QueueRemoved(
            f"queue {queue_label(queue)} no longer accepts messages: the topic has fewer queues now, or its broker is drained"
        )
    return address
