"""Two gateways that create the same topic, with its subscriptions, at the same time."""

from typing import Any

import pytest

from mqbridge.errors import Failure, ServerRefused
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.adapter.config import PulsarCluster


@pytest.mark.parametrize(
    ("code", "existing", "is_created"), [(409, 4, True), (409, 2, False), (409, None, False), (500, 4, False)]
)
async def test_a_topic_that_another_instance_creates_meanwhile_is_created(
    monkeypatch: pytest.MonkeyPatch, code: int, existing: int | None, is_created: bool
) -> None:
    cluster = Pulsar("p", PulsarCluster(service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1"))
    found = [None, existing]

    async def partitions(*_: Any) -> int | None:
        return found.pop(0)

    async def create(*_: Any) -> None:
        raise ServerRefused("This topic already exists", code, Failure.FATAL)

    monkeypatch.setattr(cluster, "_existing_partitions", partitions)
    monkeypatch.setattr(cluster._admin, "create", create)
    if is_created:
        await cluster.create("persistent://public/default/t", 4)
    else:
        with pytest.raises(ServerRefused):
            await cluster.create("persistent://public/default/t", 4)


@pytest.mark.parametrize(
    ("code", "existing", "is_created"), [(409, [], True), (412, ["g"], True), (412, [], False), (500, ["g"], False)]
)
async def test_a_subscription_that_another_instance_creates_meanwhile_is_created(
    monkeypatch: pytest.MonkeyPatch, code: int, existing: list[str], is_created: bool
) -> None:
    """The error is 412, "Subscription Busy: Failed to fence subscription", while the other one moves it to the beginning."""
    cluster = Pulsar("p", PulsarCluster(service_url="pulsar://127.0.0.1:1", admin_url="http://127.0.0.1:1"))
    operations = cluster.operations
    assert operations is not None

    async def for_each_partition(topic: str, call: Any) -> None:
        await call(topic)

    async def create(*_: Any) -> None:
        raise ServerRefused("Failed to fence subscription", code, Failure.FATAL)

    async def subscriptions(*_: Any) -> list[str]:
        return existing

    monkeypatch.setattr(operations, "_for_each_partition", for_each_partition)
    monkeypatch.setattr(cluster._admin, "create_subscription", create)
    monkeypatch.setattr(cluster._admin, "subscriptions", subscriptions)
    if is_created:
        await operations.create_group("t", "g")  # type: ignore[attr-defined]
    else:
        with pytest.raises(ServerRefused):
            await operations.create_group("t", "g")  # type: ignore[attr-defined]
