"""A real broker that requires TLS and credentials: permitted access, and the errors of refused access."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.cli.process.exit_codes import CLUSTER, OK
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.connection.authorization import AccessDenied
from tests.e2e.support import opened
from tests.kit.authority import Authority
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar_locked import ADMIN, APP, CONSUMER, GATEWAY, NAMESPACE, NOBODY, PRODUCER, LockedPulsar
from tests.pulsar.locked import PARTITIONS, Mirror, mqbridge, write_config

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

Changed = Callable[[LockedPulsar, Path], dict[str, Any]]


def of_token(token: Callable[[LockedPulsar], str]) -> Changed:
    return lambda server, _: server.config({"token": token(server)})


def of_certificate(**settings: Any) -> Changed:
    """Return a change of the configuration: a client certificate of our authority."""

    def config(server: LockedPulsar, _: Path) -> dict[str, Any]:
        own = server.certificate(APP, file="wrong", **settings)
        tls = server.tls | {"certificate": str(own.certificate), "key": str(own.key)}
        return server.config({"method": "tls"}, tls=tls)

    return config


def of_stranger(server: LockedPulsar, folder: Path) -> dict[str, Any]:
    own = Authority(folder / "stranger").issue(APP)
    tls = server.tls | {"certificate": str(own.certificate), "key": str(own.key)}
    return server.config({"method": "tls"}, tls=tls)


def trusting(server: LockedPulsar, **tls: Any) -> dict[str, Any]:
    return server.config({"token": server.token(APP)}, tls=tls)


REFUSED: dict[str, tuple[Changed, str]] = {
    "expired": (
        of_token(lambda server: server.token(APP, -5)),
        "refuses a token from the configuration (role 'app'): it expired at",
    ),
    "another key": (of_token(lambda server: server.token(APP, key=bytes(32))), "it must be signed with the key that the brokers"),
    "garbage": (of_token(lambda _: "garbage"), "refuses a token from the configuration: it must be signed"),
    "nothing": (lambda server, _: server.config(None), "refuses a connection without credentials"),
    "password": (
        lambda server, _: server.config({"user": APP, "password": "wrong"}),
        "refuses user 'app' with a password from the configuration: the brokers' user file",
    ),
    "user": (lambda server, _: server.config({"user": "somebody", "password": "x"}), "refuses user 'somebody'"),
    "old certificate": (of_certificate(begins=timedelta(days=-2), ends=timedelta(days=-1)), "our certificate has expired"),
    "strange certificate": (of_stranger, "see tls.certificate"),
    "unknown authority": (lambda server, _: trusting(server), "signed by no authority that tls.authorities holds"),
    "another name": (
        lambda server, _: trusting(server, authorities=str(server.authority.certificate), server_name="elsewhere"),
        "its certificate is not for elsewhere",
    ),
    "no such file": (
        lambda server, _: server.config({"token": {"file": "/no/such/token"}}),
        "file /no/such/token cannot be read",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_wrong_credentials_end_with_one_clear_line(case: str, pulsar_locked: LockedPulsar, tmp_path: Path) -> None:
    make, text = REFUSED[case]
    mirror = Mirror(pulsar_locked)
    config = mirror.config(make(pulsar_locked, tmp_path), pulsar_locked.config_of(APP))
    status, output = await mqbridge("check", "--connect", write_config(config, tmp_path))
    assert status == CLUSTER, output
    assert sum(text in line for line in output.splitlines()) == 1, output
    assert "Traceback" not in output
    assert pulsar_locked.token(APP) not in output


async def test_run_and_check_end_alike(pulsar_locked: LockedPulsar, tmp_path: Path) -> None:
    mirror = Mirror(pulsar_locked)
    for wrong in (pulsar_locked.config({"token": pulsar_locked.token(APP, -5)}), pulsar_locked.config_of(NOBODY)):
        config = mirror.config(wrong, pulsar_locked.config_of(APP))
        config["http"] = {"listen": "127.0.0.1:0"}
        status, output = await mqbridge("run", "--fail-fast", write_config(config, tmp_path))
        assert status == CLUSTER, output
        assert "it expired at" in output or "may not look up" in output


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "text"),
    [
        (PRODUCER, APP, "role 'producer' may not consume from {source}-partition-0 with subscription '{group}'"),
        (APP, CONSUMER, "role 'consumer' may not produce to {target}-partition-0"),
        (NOBODY, APP, "role 'nobody' may not look up {source}"),
        (APP, NOBODY, "role 'nobody' may not look up {target}"),
    ],
)
@pytest.mark.parametrize("admin", [True, False], ids=["admin", "no admin"])
async def test_a_missing_permission_is_found_before_the_route_starts(
    source: str, target: str, text: str, admin: bool, pulsar_locked: LockedPulsar, tmp_path: Path
) -> None:
    mirror = Mirror(pulsar_locked)
    ends = [pulsar_locked.config_of(role) | ({} if admin else {"admin_url": None}) for role in (source, target)]
    status, output = await mqbridge("check", "--connect", write_config(mirror.config(*ends), tmp_path))
    expected = text.format(source=mirror.source, target=mirror.target, group=mirror.group)
    assert status == CLUSTER, output
    assert sum(expected in line for line in output.splitlines()) == 1, output
    assert "pulsar-admin namespaces grant-permission locked/orders --role" in output
    for topic in (mirror.source, mirror.target):
        path = f"{topic.replace('://', '/')}/partitioned-stats?perPartition=false"
        stats = pulsar_locked.admin("GET", path)
        assert set(stats["subscriptions"]) <= {"judge"}, "looking changes nothing"
        assert stats["publishers"] == []


@pytest.mark.parametrize("method", ["token", "basic", "tls"])
@pytest.mark.parametrize("admin", [True, False], ids=["admin", "no admin"])
async def test_a_route_needs_only_produce_and_consume(
    method: str, admin: bool, pulsar_locked: LockedPulsar, tmp_path: Path
) -> None:
    mirror = Mirror(pulsar_locked)
    await mirror.send(200)
    without = {} if admin else {"admin_url": None}
    source, target = (
        CONSUMER if method == "token" else APP,
        PRODUCER if method == "token" else APP,
    )
    config = mirror.config(*(pulsar_locked.config_of(role, method) | without for role in (source, target)))
    status, output = await mqbridge("check", "--connect", write_config(config, tmp_path))
    assert status == OK, output
    with GatewayProcess(config, tmp_path / "gateway") as gateway:
        await asyncio.to_thread(gateway.wait_stored, PARTITIONS * mirror.sent)
        assert await asyncio.to_thread(gateway.terminate) == OK
    await mirror.judge()


async def test_checks_and_opening_report_the_same_error(pulsar_locked: LockedPulsar) -> None:
    topic = pulsar_locked.take_topic(2)
    for role, consumes, produces in ((APP, True, True), (CONSUMER, True, False), (PRODUCER, False, True)):
        async with opened("pulsar", pulsar_locked.config_of(role)) as cluster:
            inbound, outbound = InboundSpec((topic,), "app-group"), OutboundSpec(topic)
            if consumes:
                await cluster.check_inbound(inbound)
                assert await cluster.operations.groups(topic) in ([], ["app-group"])
                await (await cluster.inbound(inbound)).close()
                await cluster.check_inbound(inbound)
            else:
                for look in (cluster.check_inbound, cluster.inbound):
                    with pytest.raises(AccessDenied):
                        await look(inbound)
            if produces:
                await cluster.check_outbound(outbound)
            else:
                with pytest.raises(AccessDenied):
                    await cluster.check_outbound(outbound)


async def test_checks_do_not_disturb_a_connected_consumer(pulsar_locked: LockedPulsar) -> None:
    topic = pulsar_locked.take_topic()
    async with opened("pulsar", pulsar_locked.config_of(APP)) as cluster:
        options = ADAPTER.inbound_options.model_validate({"subscription_type": "exclusive"})
        spec = InboundSpec((topic,), "app-group", options=options)
        inbound = await cluster.inbound(spec)
        before = [member.id for member in await cluster.operations.members(topic, "app-group")]
        await cluster.check_inbound(spec)
        assert [member.id for member in await cluster.operations.members(topic, "app-group")] == before
        await inbound.close()


async def test_a_namespace_may_require_the_role_as_subscription_prefix(pulsar_locked: LockedPulsar) -> None:
    namespace = pulsar_locked.create_namespace("locked", f"prefixed-{uuid4().hex[:6]}")
    pulsar_locked.admin("POST", f"namespaces/{namespace}/permissions/{APP}", ["consume", "produce"])
    pulsar_locked.admin("POST", f"namespaces/{namespace}/subscriptionAuthMode", "Prefix")
    topic = pulsar_locked.create_topic("t", namespace=namespace)
    async with opened("pulsar", pulsar_locked.config_of(APP)) as cluster:
        with pytest.raises(AccessDenied, match="must begin with the role"):
            await cluster.check_inbound(InboundSpec((topic,), "group"))
        await cluster.check_inbound(InboundSpec((topic,), "app-group"))
        assert set(await cluster.bounds(topic)) == {"-1"}, "readers are named after the role"


async def test_topics_are_listed_as_far_as_the_role_permits(pulsar_locked: LockedPulsar) -> None:
    topic = pulsar_locked.take_topic()
    other = pulsar_locked.create_topic(f"x-{uuid4().hex[:8]}", namespace="public/default")
    for role, sees_other in ((ADMIN, True), (GATEWAY, False), (APP, False), (PRODUCER, False)):
        async with opened("pulsar", pulsar_locked.config_of(role)) as cluster:
            found = await cluster.topics()
            assert topic.rpartition("/")[2] in found, role
            assert (other.removeprefix("persistent://") in found) is sees_other, role
    async with opened("pulsar", pulsar_locked.config_of(NOBODY)) as cluster:
        with pytest.raises(AccessDenied, match=f"role 'nobody' may not list the topics of {NAMESPACE}"):
            await cluster.topics()


async def test_errors_name_the_missing_administrator_permission(pulsar_locked: LockedPulsar) -> None:
    topic = pulsar_locked.take_topic()
    async with opened("pulsar", pulsar_locked.config_of(APP)) as cluster:
        for refused in (cluster.create(f"{topic}-new", 2), cluster.operations.deduplicates(topic)):
            with pytest.raises(AccessDenied, match=r"role 'app' may not .*this needs an administrator of the tenant") as caught:
                await refused
            assert caught.value.failure is Failure.FATAL
        (warning,) = await _warnings(cluster, topic)
        assert "may not GET" in warning
    async with opened("pulsar", pulsar_locked.config_of(GATEWAY)) as cluster:
        await cluster.create(f"{topic}-new", 2)
        assert await _warnings(cluster, topic) == []
        assert "no subscription and no retention" in (await cluster.operations.why_unprotected(topic) or "")


async def _warnings(cluster: Any, topic: str) -> list[str]:
    try:
        found: list[str] = await cluster.operations.warnings(topic)
    except ClusterError as error:
        return [str(error)]
    return found


async def test_a_producer_may_auto_create_topics(pulsar_locked: LockedPulsar) -> None:
    topic = f"persistent://{NAMESPACE}/made-{uuid4().hex[:8]}"
    async with opened("pulsar", pulsar_locked.config_of(PRODUCER) | {"admin_url": None}) as cluster:
        await cluster.create(topic, 1)
        assert await cluster.describe(topic) is not None


async def test_resuming_needs_the_consume_permission(pulsar_locked: LockedPulsar) -> None:
    topic = pulsar_locked.take_topic()
    source = Partition("elsewhere", "t", "0", 0)
    for role in (APP, PRODUCER):
        async with opened("pulsar", pulsar_locked.config_of(role)) as cluster:
            outbound = await cluster.outbound(OutboundSpec(topic))
            try:
                if role == APP:
                    assert await outbound.resume(source) == {}
                else:
                    with pytest.raises(AccessDenied, match="may not consume"):
                        await outbound.resume(source)
            finally:
                await outbound.close()


async def test_expiry_times_are_reported(pulsar_locked: LockedPulsar) -> None:
    ends = time.time() + 3600
    own = pulsar_locked.config({"token": pulsar_locked.token(APP, 3600)})
    async with opened("pulsar", own) as cluster:
        await cluster.topics()
        port, web = (url.rpartition(":")[2] for url in (pulsar_locked.service_url, pulsar_locked.admin_url))
        assert set(cluster.expiries) == {"token", f"certificate of 127.0.0.1:{port}", f"certificate of 127.0.0.1:{web}"}
        assert abs(cluster.expiries["token"] - ends) < 60
