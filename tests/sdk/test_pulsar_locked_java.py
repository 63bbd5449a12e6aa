"""Consumers of ours and of the official Java client share a subscription of a locked Pulsar, with the same credentials."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqbridge.net.secret import Secret
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.cluster_client import ClusterClient, Timing
from mqbridge.pulsar.client.connection.auth import Auth, TlsAuth, TokenAuth
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from tests.kit.java import JavaError
from tests.kit.pulsar_locked import APP, CONSUMER, LockedPulsar, write_atomically
from tests.sdk.pulsar import group
from tests.sdk.rocketmq import run_java, until

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.sdk, pytest.mark.timeout(300)]

PARTITIONS = 2
MESSAGES = 64


@pytest.mark.parametrize("method", ["token", "tls"])
async def test_java_and_our_members_share_a_subscription(method: str, pulsar_locked: LockedPulsar, tmp_path: Path) -> None:
    authorities = pulsar_locked.authority.certificate
    options = {"authorities": str(authorities)}
    auth: Auth
    if method == "token":
        file = tmp_path / "token"
        write_atomically(file, pulsar_locked.token(APP))
        options["token_file"] = str(file)
        auth, settings = TokenAuth(Secret(file=file)), TlsSettings(authorities=authorities)
    else:
        own = pulsar_locked.certificate(APP)
        options |= {"certificate": str(own.certificate), "key": str(own.key)}
        settings = TlsSettings(authorities=authorities, certificate=own.certificate, key=own.key)
        auth = TlsAuth(own.certificate)

    def open_client() -> ClusterClient:
        service = parse_service_url(pulsar_locked.service_url, tls=True)
        return ClusterClient(service, tls=Tls(settings), auth=auth, timing=Timing(operation=20.0))

    async with group(pulsar_locked, "Shared", PARTITIONS, tmp_path, open_client, options) as members:
        await members.join("a")
        members.spawn_java("java-1")
        async with members.sending():
            await members.wait_until_joined()
            await until(lambda: all(len(member.handled) > 5 for member in members.members.values()))
        await members.wait_until_acknowledged()
        numbers = await members.send(MESSAGES)
        await members.wait_until_acknowledged()
        assert members.times(numbers) == dict.fromkeys(numbers, 1)
        await run_java(
            "PulsarProduce", url=pulsar_locked.service_url, topic=members.topic, messages=MESSAGES, size=8,
            start=len(members.sent), **options,
        )  # fmt: skip
        members.sent += range(len(members.sent), len(members.sent) + MESSAGES)
        await members.wait_until_acknowledged()
        await members.leave("java-1")
        done = [event for event in members.events() if event.done == "acknowledged"]
        assert {event.number for event in done} == set(members.sent)
        assert {event.who for event in done} == {"a", "java-1"}


async def test_the_java_client_and_our_client_are_denied_the_same_requests(pulsar_locked: LockedPulsar, tmp_path: Path) -> None:
    """A role that may consume but not produce has the same permissions with either client."""
    file = tmp_path / "token"
    write_atomically(file, pulsar_locked.token(CONSUMER))
    options = {"authorities": str(pulsar_locked.authority.certificate), "token_file": str(file)}
    topic = pulsar_locked.take_topic()
    with pytest.raises(JavaError, match="AuthorizationException"):
        await run_java("PulsarProduce", url=pulsar_locked.service_url, topic=topic, **options)
