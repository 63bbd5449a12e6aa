"""The part of a producer that its send queues use."""

from typing import Protocol

from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.producer.send_request import SendRequest


class SenderContext(Protocol):
    """The part of `QueueProducer` that its send queues use."""

    client: BaseClient
    in_flight_per_queue: int
    """Maximum number of requests to one queue without a response."""
    max_elapsed_s: float | None
    """Maximum outage of a queue, after which all its waiting sends fail; None: they are retried for ever."""
    fail_behind: bool
    """Whether a send that fails for another reason than REFUSED also fails all later sends to its queue."""
    require_replica: bool
    """Whether a message that a broker stored without the flush or the replica that its settings demand is sent again."""
    closing: bool
    """True once the producer accepts no sends any more; failed sends are not repeated then."""

    async def route(self, *, missing: bool = False) -> TopicRoute:
        """Return the topic's route. Set `missing` if a broker has reported that the topic does not exist.

        Raises ClusterError if no name server knows the topic: FATAL if it is `missing` or never had a route, else REFRESH.
        """

    def send_elsewhere(self, request: SendRequest, avoid: str | None) -> bool:
        """Send a request that is not bound to its queue to another one, whose sends do not fail at present.

        The queue is not at the broker `avoid` (None: at any broker). Return False if there is no such queue.
        """

    def on_queue_empty(self) -> None:
        """Tell the producer that a send queue has no pending sends."""
