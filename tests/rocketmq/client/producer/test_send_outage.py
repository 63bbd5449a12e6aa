"""The outage of one queue ends with the next stored message, also after all waiting sends have failed."""

import logging

import pytest

from mqbridge.errors import ClusterError
from mqbridge.net.connectivity import Connectivity
from mqbridge.rocketmq.client.producer import send_outage
from mqbridge.rocketmq.client.producer.send_outage import SendOutage


@pytest.mark.parametrize("sends_failed", [False, True])
async def test_a_stored_message_ends_the_outage(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sends_failed: bool
) -> None:
    monkeypatch.setattr(send_outage, "MIN_RETRY_S", 0.001)
    outage = SendOutage("queue broker-a:0", 60.0, Connectivity("c"))
    for number in range(2):
        outage.record_failure()
        with caplog.at_level(logging.WARNING):
            await outage.wait(ClusterError("no response"))
        assert outage.is_recent
        if sends_failed:
            outage.restart_time_limit()
        outage.record_success()
        assert not outage.is_recent, "the queue is chosen again"
        assert len(caplog.records) == number + 1, "each outage is logged as a warning"
