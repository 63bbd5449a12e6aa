"""Clusters that require TLS and credentials, while every certificate, key and token is replaced.

One gateway copies RocketMQ to Pulsar and back again. Its certificate, its key for RocketMQ, and its token for Pulsar, which
expires after seconds, are replaced in their files while messages flow; no message may be lost, and no restart is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Share
from tests.e2e.support import opened, read
from tests.kit.authority import Identity
from tests.kit.gateway import CONFIG, GatewayProcess
from tests.kit.mounted import mount
from tests.kit.oracle import Oracle, message
from tests.kit.pulsar_locked import APP, CHECK_S, LockedPulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import APP as APPLICANT
from tests.kit.rocketmq_lock import APPLICATION, User

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PARTITIONS, SIZE, BATCH = 2, 300, 50
TOKEN_LIFETIME_S, TOKEN_RENEWAL_S = 8.0 * CHECK_S, 2.0 * CHECK_S
"""Time after which a token for Pulsar expires; interval in which it is replaced."""
REPLACEMENTS = 3
USER_NAME = "exchanged"


class Credentials:
    """The gateway's credentials for both clusters, in files, as they are mounted into a container."""

    def __init__(self, folder: Path, pulsar: LockedPulsar, rocketmq: RocketMQ) -> None:
        assert rocketmq.lock is not None
        self.folder, self.pulsar, self.rocketmq, self.lock = folder, pulsar, rocketmq, rocketmq.lock
        self.certificate, self.key = folder / "client.pem", folder / "client.key"
        self.secret, self.token = folder / "secret-key", folder / "token"

    def replace(self, number: int) -> None:
        """Replace the certificate, the key for RocketMQ and the token for Pulsar; like an operator, on the servers first."""
        user = User(USER_NAME, f"secret-number-{number}", APPLICATION)
        self.rocketmq.open_for(user)
        self._write(self.secret, user.secret)
        identity: Identity = self.lock.authority.issue("gateway", file=f"gateway-{number}")
        shutil.copy(identity.key, self.key)
        shutil.copy(identity.certificate, self.certificate)
        self.renew_token()

    def renew_token(self) -> None:
        """Replace the token by a new one."""
        self._write(self.token, self.pulsar.token(APP, TOKEN_LIFETIME_S))

    def _write(self, path: Path, text: str) -> None:
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)

    def clusters(self) -> dict[str, Any]:
        """Return the clusters of a configuration."""
        authorities = str(self.lock.authority.certificate)
        tls = {"authorities": authorities, "certificate": str(self.certificate), "key": str(self.key)}
        auth = {"access_key": USER_NAME, "secret_key": {"file": str(self.secret)}}
        return {
            "rocket": {
                "system": "rocketmq",
                "name_servers": self.rocketmq.name_server,
                "heartbeat": "1s",
                "tls": tls,
                "auth": auth,
            },
            "pulsar": {"system": "pulsar", **self.pulsar.config({"token": {"file": str(self.token)}})},
        }


@contextlib.asynccontextmanager
async def renew_tokens(credentials: Credentials) -> AsyncIterator[None]:
    """Replace the token regularly, before it expires."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(TOKEN_RENEWAL_S)
            credentials.renew_token()

    task = asyncio.ensure_future(renew())
    try:
        yield
    finally:
        task.cancel()


def stored(gateway: GatewayProcess) -> list[int]:
    """Return the number of stored messages of each route; [0] while the page is not served yet."""
    assert gateway.process.poll() is None, gateway.log
    try:
        rows = httpx.get(f"http://127.0.0.1:{gateway.port}/routes", timeout=10).json()
    except httpx.TransportError:
        return [0]
    return [row["stored"] for row in rows] or [0]


@pytest.mark.thorough
async def test_replacing_certificates_under_load_loses_nothing(
    pulsar_locked: LockedPulsar, rocketmq_locked: RocketMQ, tmp_path: Path
) -> None:
    credentials = Credentials(tmp_path, pulsar_locked, rocketmq_locked)
    await asyncio.to_thread(credentials.replace, 0)
    here, back = [await asyncio.to_thread(rocketmq_locked.take_topic, PARTITIONS) for _ in range(2)]
    middle = await asyncio.to_thread(pulsar_locked.take_topic, PARTITIONS)
    await asyncio.to_thread(pulsar_locked.keep, middle)
    clusters = credentials.clusters()
    routes = [
        {"name": name, "from": {"cluster": source, "topic": topic, "group": f"g-{name}-{time.time_ns()}"}, "to": to}
        for name, source, topic, to in (
            ("there", "rocket", here, {"cluster": "pulsar", "topic": middle, "create": False, "partitions": {"by": "identity"}}),
            ("back", "pulsar", middle, {"cluster": "rocket", "topic": back, "create": False, "partitions": {"by": "identity"}}),
        )
    ]
    for route in routes:
        route["delivery"] = {"prevent_loops": False}
    sent = 0
    settings = {key: value for key, value in clusters["rocket"].items() if key != "system"}
    async with renew_tokens(credentials), opened("rocketmq", settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(here, stamp_origin=False))
        with GatewayProcess({"clusters": clusters, "routes": routes}, tmp_path / "run") as gateway:

            async def send_until(count: int) -> None:
                """Send messages until both routes have stored `count` messages since the start."""
                nonlocal sent
                while sent < PARTITIONS * BATCH or min(await asyncio.to_thread(stored, gateway)) < count:
                    first = sent // PARTITIONS
                    batches = [Batch.of([message(p, first + n, SIZE) for n in range(BATCH)]) for p in range(PARTITIONS)]
                    receipts = await asyncio.gather(*(outbound.send(p, Share(batch)) for p, batch in enumerate(batches)))
                    assert [receipt.failures for receipt in receipts] == [[] for _ in receipts]
                    sent += PARTITIONS * BATCH

            await send_until(1)
            for number in range(1, REPLACEMENTS + 1):
                await asyncio.to_thread(credentials.replace, number)
                await send_until(sent + 10 * BATCH)
            began = time.monotonic()
            while time.monotonic() - began < 2 * TOKEN_LIFETIME_S:  # every earlier token has expired
                await send_until(sent + 1)
            while min(await asyncio.to_thread(stored, gateway)) < sent:
                await asyncio.sleep(0.1)
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
        await outbound.close()
        oracle = Oracle([sent // PARTITIONS] * PARTITIONS, SIZE)
        async for partition, messages in read("rocketmq", settings, back, f"judge-{time.time_ns()}"):
            oracle.see(partition, messages)
    oracle.assert_complete()
    assert "secret-number" not in gateway.log


async def test_the_shipped_example_runs_with_the_documented_rights(
    pulsar_locked: LockedPulsar, rocketmq_locked: RocketMQ, tmp_path: Path
) -> None:
    """The users have only the rights that the how-to guides name."""
    mount(tmp_path / "secrets", pulsar_locked, role=APP)
    mount(tmp_path / "secrets", rocketmq_locked, user=APPLICANT)
    topic = await asyncio.to_thread(rocketmq_locked.take_topic, 1)
    target = pulsar_locked.keep(await asyncio.to_thread(pulsar_locked.take_topic, 1))
    for number in range(10):
        await asyncio.to_thread(rocketmq_locked.send, topic, b"%d" % number)
    env = {
        "SECRETS": str(tmp_path / "secrets"),
        "ROCKETMQ_NAME_SERVERS": rocketmq_locked.name_server,
        "PULSAR_URL": pulsar_locked.service_url,
        "PULSAR_ADMIN_URL": pulsar_locked.admin_url,
        "SOURCE_TOPIC": topic,
        "TARGET_TOPIC": target,
        "GROUP": f"g-{time.time_ns()}",
        "CREATE": "false",
    }
    with GatewayProcess(CONFIG / "locked.yaml", tmp_path / "run", env=env) as gateway:
        await asyncio.to_thread(gateway.wait_stored, 10)
        page = await asyncio.to_thread(lambda: httpx.get(f"http://127.0.0.1:{gateway.port}/metrics", timeout=10).text)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    expiries = {line.rpartition(" ")[0] for line in page.splitlines() if line.startswith("mqbridge_expiry_timestamp_seconds{")}
    assert 'mqbridge_expiry_timestamp_seconds{cluster="rocket",of="own certificate"}' in expiries
    assert f'mqbridge_expiry_timestamp_seconds{{cluster="rocket",of="certificate of {rocketmq_locked.name_server}"}}' in expiries
    assert any('cluster="pulsar",of="certificate of 127.0.0.1:' in line for line in expiries)
