"""The producer, as its send queues see it."""

from typing import Protocol

from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.client.send_request import SendRequest


class SenderContext(Protocol):
    """What send queues need of their producer."""

    client: BaseClient
    in_flight_per_queue: int
    max_elapsed_s: float | None
    fail_behind: bool
    closing: bool

    async def route(self, *, missing: bool = False) -> TopicRoute:
        """The topic's route. Raises ClusterError."""

    def take_over(self, request: SendRequest, avoid: str | None) -> bool:
        """Give a movable request to another queue, not at the broker `avoid`; False if there is none."""

    def emptied(self) -> None:
        """A queue has sent everything."""
