"""A scripted cluster that fails one request of a conversation, chosen by number or by code, in one of four ways (MODES)."""

from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.net import pending
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection import connection, route_table
from mqbridge.rocketmq.client.consumer import (
    commit_carrying_pulls,
    membership,
    pull_consumer,
    pull_loop,
    pull_request,
    queue_commits,
)
from mqbridge.rocketmq.client.producer import send_outage
from mqbridge.rocketmq.library import pop
from mqbridge.rocketmq.wire.command import Command
from tests.rocketmq.client.broker import Cluster, Link, scripted_client
from tests.rocketmq.client.groups import Groups

LOST, UNANSWERED, TORN, SILENT = MODES = "lost", "unanswered", "torn", "silent"
"""The connection is closed before the request is executed, after that, or within its response; SILENT: it stays open, but the
request is neither executed nor answered."""
SHORT_S = 0.2
"""Time limit for a response that never comes."""
LONG_S = 5.0
"""Time limit for a response that does come, also on a busy machine."""
PAUSES = {
    commit_carrying_pulls: ("COMMIT_STORED_S",),
    pull_consumer: ("HANDOVER_S", "UNBALANCED_INTERVAL_S"),
    membership: ("JOIN_PAUSE_S",),
    route_table: ("MIN_REFRESH_PAUSE_S",),
    send_outage: ("MIN_RETRY_S",),
    pull_loop: ("MIN_RETRY_PAUSE_S", "MAX_RETRY_PAUSE_S", "SUBSCRIPTION_WAIT_S", "MIN_HOLD_S"),
    queue_commits: ("MAX_WAIT_S",),
    pending: ("SWEEP_S",),
}


class Cutting(Cluster):
    """A cluster that fails the request with the number `victim`, or the first one with `victim_code`.

    Afterwards, `hit` is the code of the failed request; None if there was none.
    """

    def __init__(self, mode: str, victim: int | None, victim_code: int | None = None) -> None:
        super().__init__()
        self.mode, self.victim, self.victim_code = mode, victim, victim_code
        self.patience_s = SHORT_S if mode == SILENT else LONG_S
        self.count = 0
        self.hit: int | None = None
        self.topics = {"T": {"broker-a": 2}}
        self.groups = Groups(self)

    def receive(self, link: Link, command: Command) -> None:
        if command.is_response or not link.open:
            return
        number, self.count = self.count, self.count + 1
        if number != self.victim and (command.code != self.victim_code or self.hit is not None):
            super().receive(link, command)
            return
        self.hit = command.code
        if self.mode == SILENT:
            return
        if self.mode == LOST:
            self.end(link)
            return
        responses: list[bytes] = []
        link.send_bytes = responses.append  # type: ignore[method-assign]
        super().receive(link, command)
        if self.mode == TORN and responses:
            link.endpoint.data_received(responses[0][: len(responses[0]) // 2])
        self.end(link)

    def end(self, link: Link) -> None:
        """Close the connection; like brokers, remove its client from its groups and notify the other members."""
        link.drop()
        for group, members in self.groups.members.items():
            lost = [client_id for client_id, member_link in members.items() if member_link is link]
            for client_id in lost:
                del members[client_id]
            if lost:
                self.groups.notify(group)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make all pauses short that only reduce the load of servers."""
    for module, names in PAUSES.items():
        for name in names:
            monkeypatch.setattr(module, name, 0.005)
    return monkeypatch


def cutting(patch: pytest.MonkeyPatch, mode: str, victim: int | None, victim_code: int | None = None) -> Cutting:
    """Create a cluster to which every later client connects."""
    cluster = Cutting(mode, victim, victim_code)
    patch.setattr(connection, "dial", cluster.dial)
    patch.setattr(pull_request, "RESPONSE_TIMEOUT_S", cluster.patience_s)
    patch.setattr(pop, "RESPONSE_MARGIN_S", cluster.patience_s)
    return cluster


def new_client(cluster: Cutting) -> ClusterClient:
    return scripted_client(request=cluster.patience_s)


async def retry_temporary_errors(call: Any) -> Any:
    """Call up to three times, as long as an error is temporary (RETRY or REFRESH)."""
    for _ in range(3):
        try:
            return await call()
        except ClusterError as error:
            if error.failure not in {Failure.RETRY, Failure.REFRESH}:
                raise
            last = error
    raise last
