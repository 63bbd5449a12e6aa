"""Shortens all pauses, for tests whose servers respond at once."""

import pytest

from mqbridge.tubemq.client.connection import master
from mqbridge.tubemq.client.consumer import (
    flow_control,
    group_consumer,
    held_partitions,
    pack_reader,
    partition,
    partition_pacing,
    partition_registration,
)
from mqbridge.tubemq.client.producer import broker_reconnector
from mqbridge.tubemq.library import balanced_consumer

PAUSES = {
    balanced_consumer: ("REFRESH_S",),
    group_consumer: ("RETRY_S",),
    flow_control: ("NOT_FOUND_WAIT_S",),
    held_partitions: ("COMMIT_AFTER_S",),
    broker_reconnector: ("FIRST_RETRY_S", "MAX_RETRY_S"),
    master: ("REGISTER_PAUSE_S",),
    partition: ("CONFIRM_WAIT_S",),
    partition_pacing: ("DEFAULT_REFUSAL_WAIT_S", "NOT_FOUND_WAIT_S"),
    pack_reader: ("COMMIT_AFTER_S",),
    partition_registration: ("MASTER_SILENT_PAUSE_S", "OCCUPIED_RETRY_S", "REGISTER_PAUSE_S"),
}


def shorten_pauses(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.002) -> None:
    """Set every pause of the client to `seconds`."""
    for module, names in PAUSES.items():
        for name in names:
            monkeypatch.setattr(module, name, seconds)
    monkeypatch.setattr(partition_pacing, "REFUSAL_WAITS_S", dict.fromkeys(partition_pacing.REFUSAL_WAITS_S, seconds))
    monkeypatch.setattr("mqbridge.net.backoff.Backoff.delay", lambda _: seconds)
