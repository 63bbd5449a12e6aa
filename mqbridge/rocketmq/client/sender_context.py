"""The part of a producer that its send queues use."""

from typing import Protocol

from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.client.send_request import SendRequest


class SenderContext(Protocol):
    """The part of `QueueProducer` that its send queues use; its docstring explains the settings."""

    client: BaseClient
    in_flight_per_queue: int
    max_elapsed_s: float | None
    fail_behind: bool
    closing: bool
    """True once the producer accepts no sends any more; failed sends are not repeated then."""

    async def route(self, *, missing: bool = False) -> TopicRoute:
        """Return the topic's route; see `QueueProducer.route`. `missing`: a broker reports that the topic does not exist."""

    def send_elsewhere(self, request: SendRequest, avoid: str | None) -> bool:
        """Send a movable request to another healthy queue, not at the broker `avoid` (None: any); return False without one."""

    def on_queue_empty(self) -> None:
        """Tell the producer that a send queue has no pending sends."""
