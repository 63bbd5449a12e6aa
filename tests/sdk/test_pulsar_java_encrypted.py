"""Messages that Java producers encrypt, through dead letters and back: whoever has the key reads them like the original ones."""

from __future__ import annotations

import asyncio
import base64
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mqbridge.config.load import from_dict
from mqbridge.gateway.run import Gateway
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.sdk.rocketmq import run_java

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(300)]

PAYLOAD_BYTES, CHUNK_BYTES, LARGE_BYTES = 100, 20_000, 70_000


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Files with the public and the private key of the producers, in PEM."""
    folder = tmp_path_factory.mktemp("keys")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = folder / "public.pem", folder / "private.pem"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return str(public), str(private)


async def run_route(clusters: dict[str, Any], source: tuple[str, str], target: dict[str, Any], **route: Any) -> int:
    """Run a route until it is idle; return its number of dead letters."""
    config = {
        "clusters": clusters,
        "http": {"enabled": False},
        "routes": [{"name": "r", "from": {"cluster": source[0], "topic": source[1], "group": "g"}, "to": target, **route}],
    }
    outcome = await asyncio.wait_for(Gateway(from_dict(config)).run(1.0), SERVER_PATIENCE_S)
    assert outcome.clean, outcome
    return outcome.routes[0].counters.dead


async def run_shell(line: str) -> None:
    process = await asyncio.create_subprocess_shell(line, stdin=asyncio.subprocess.DEVNULL)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert await process.wait() == 0


def comparable(line: dict[str, Any]) -> tuple[object, ...]:
    fields = ("key", "orderingKey", "properties", "eventTime", "body")
    return tuple(str(line[field]) for field in fields)


@pytest.mark.parametrize("dead_cluster", ["pulsar", "log"])
async def test_encrypted_messages_survive_as_dead_letters(
    dead_cluster: str, pulsar: Pulsar, keys: tuple[str, str], tmp_path: Path
) -> None:
    public, private = keys
    topic, restored = pulsar.take_topic(), pulsar.keep(pulsar.take_topic())
    dead = pulsar.keep(pulsar.take_topic()) if dead_cluster == "pulsar" else "dead"
    produce = {
        "url": pulsar.service_url, "public_key": public, "key": "k{n}", "ordering_key": "o{n}", "event_time": 1_700_000_000_000,
        "properties": "number={n}", "messages": 3,
    }  # fmt: skip
    await run_java("PulsarProduce", topic=topic, size=PAYLOAD_BYTES, **produce)  # a batch
    await run_java("PulsarProduce", topic=topic, size=PAYLOAD_BYTES, batching="false", compression="ZSTD", start=3, **produce)
    await run_java("PulsarProduce", topic=topic, size=LARGE_BYTES, chunk_bytes=CHUNK_BYTES, start=6, **produce)
    consume = {"url": pulsar.service_url, "subscription": "reader", "private_key": private, "messages": 9}
    originals = await run_java("PulsarConsume", topic=topic, **consume)
    assert len(originals) == 9

    clusters = {
        "pulsar": {"system": "pulsar", "service_url": pulsar.service_url, "admin_url": pulsar.admin_url},
        "log": {"system": "log", "path": str(tmp_path / "dead.db")},
        "target": {"system": "log", "path": str(tmp_path / "target.db")},
    }
    delivery = {"dead_letter": {"cluster": dead_cluster, "topic": dead}}
    count = await run_route(clusters, ("pulsar", topic), {"cluster": "target", "topic": "copy"}, delivery=delivery)
    assert count > 1 + 3 + 3, "a batch is one dead letter, and each chunk is one"

    if dead_cluster == "pulsar":
        back = {"cluster": "pulsar", "topic": restored, "options": {"restore_entries": True, "compression": "zstd"}}
        assert await run_route(clusters, (dead_cluster, dead), back) == 0
    else:
        mqbridge = f"{sys.executable} -m mqbridge"
        await run_shell(
            f"{mqbridge} consume -t {dead} -e --json --at log://{tmp_path}/dead.db"
            f" | {mqbridge} produce -t {restored} --from-json -X restore_entries=true --at {pulsar.service_url}"
        )
    again = await run_java("PulsarConsume", topic=restored, **consume)
    assert sorted(map(comparable, again)) == sorted(map(comparable, originals))
    assert {base64.b64decode(line["body"])[:8] for line in again} == {number.to_bytes(8) for number in range(9)}
