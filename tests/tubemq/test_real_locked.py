"""A real TubeMQ with TLS, credentials, visit tokens and restricted topics: which clients it accepts, and what can be rotated."""

import asyncio
import itertools
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
import yaml

from mqbridge.adapter import reading
from mqbridge.errors import ServerRefused
from mqbridge.net.addresses import split_address
from mqbridge.net.secret import Secret
from mqbridge.net.tasks import cancel, spawn
from mqbridge.net.tls.settings import TlsSettings
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.adapter.registration import ADAPTER
from mqbridge.tubemq.library.client import TubeMQClient
from mqbridge.tubemq.library.messages import decode_all
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo
from tests.kit.authority import Authority, Identity
from tests.kit.gateway import GatewayProcess
from tests.kit.tcp_proxy import Network
from tests.kit.tubemq_locked import PASSWORD, USER, LockedTubeMQ
from tests.kit.tubemq_settings import TOKEN
from tests.tubemq.real import fresh_group, until

pytestmark = pytest.mark.cluster

Told = tuple[int, str]
Check = Callable[..., Told]


def cluster_of(server: LockedTubeMQ, **changes: Any) -> dict[str, Any]:
    """Return the server's cluster configuration with `changes`: None removes an option; `tls` and `auth` are merged."""
    found: dict[str, Any] = {"system": "tubemq", "masters": server.masters, "heartbeat": "1s", **server.keys}
    for name, value in changes.items():
        found[name] = {**found[name], **value} if name in server.keys and isinstance(value, dict) else value
    return {name: value for name, value in found.items() if value is not None}


def route(cluster: dict[str, Any], source: str, target: str, group: str) -> dict[str, Any]:
    return {
        "clusters": {"locked": cluster},
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "locked", "topic": source, "group": group, "start": "earliest"},
                "to": {"cluster": "locked", "topic": target, "create": False},
            }
        ],
        "http": {"enabled": False},
    }


@pytest.fixture
def mqbridge(tmp_path: Path) -> Check:
    """Function that runs a command with a configuration in a process of its own, and returns the exit code and the output."""
    numbers = itertools.count()

    def run(command: str, config: dict[str, Any], *options: str) -> Told:
        file = tmp_path / f"{next(numbers)}.yaml"
        file.write_text(yaml.safe_dump(config))
        program = [sys.executable, "-m", "mqbridge", command, str(file), *options]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
        assert PASSWORD not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def topics(tubemq_locked: LockedTubeMQ) -> tuple[str, str]:
    return tubemq_locked.take_topic(1), tubemq_locked.take_topic(1)


def test_a_check_passes_with_all_credentials(tubemq_locked: LockedTubeMQ, topics: tuple[str, str], mqbridge: Check) -> None:
    admin = {"admin_url": tubemq_locked.admin_url, "admin_token": TOKEN}
    code, told = mqbridge("check", route(cluster_of(tubemq_locked, **admin), *topics, fresh_group()), "--connect")
    assert code == 0, told


class WrongCredentials:
    """Wrong credentials and certificates, by the kind of fault."""

    def __init__(self, server: LockedTubeMQ, folder: Path) -> None:
        stranger = Authority(folder / "stranger", "somebody else")
        old = server.authority.issue("client", file="old", begins=timedelta(days=-3), ends=timedelta(days=-1))
        nothing = folder / "nothing"
        nothing.write_text("")
        self.changes: dict[str, tuple[dict[str, Any], str]] = {
            "password": ({"auth": {"password": "wrong"}}, "the Master does not accept user 'bridge' with the password from the"),
            "user": ({"auth": {"user": "somebody"}}, "the Master does not accept user 'somebody' with the password from the"),
            "nobody": ({"auth": None}, "the Master requires credentials: set auth.user and auth.password"),
            "empty": ({"auth": {"password": {"file": str(nothing)}}}, "nothing cannot be read: the file is empty"),
            "plain": ({"tls": None}, "Is it the port of another system, of a web interface, or one for TLS?"),
            "tls-of-nobody": (
                {"masters": server.open_masters},
                "did not accept a connection by TLS within 3 s: is this its port for TLS?",
            ),
            "authority": (
                {"tls": {"authorities": str(stranger.certificate)}},
                "signed by no authority that tls.authorities holds",
            ),
            "name": ({"tls": {"server_name": "elsewhere"}}, "its certificate is not for elsewhere"),
            "no-certificate": ({"tls": {"certificate": None, "key": None}}, "tls.certificate"),
            "strange-certificate": ({"tls": _files(stranger.issue("client"))}, "tls.certificate"),
            "old-certificate": ({"tls": _files(old)}, "tls.certificate"),
        }


def _files(identity: Identity) -> dict[str, str]:
    return {"certificate": str(identity.certificate), "key": str(identity.key)}


@pytest.fixture(scope="module")
def wrong(tubemq_locked: LockedTubeMQ, tmp_path_factory: pytest.TempPathFactory) -> WrongCredentials:
    return WrongCredentials(tubemq_locked, tmp_path_factory.mktemp("wrong"))


KINDS = [
    *("password", "user", "nobody", "empty", "plain", "tls-of-nobody"),
    *("authority", "name", "no-certificate", "strange-certificate", "old-certificate"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_credentials_are_explained_in_one_line(
    tubemq_locked: LockedTubeMQ, topics: tuple[str, str], mqbridge: Check, wrong: WrongCredentials, kind: str
) -> None:
    changes, expected = wrong.changes[kind]
    code, told = mqbridge("check", route(cluster_of(tubemq_locked, **changes), *topics, fresh_group()), "--connect")
    telling = [line for line in told.splitlines() if expected in line and "WARNING" not in line]
    assert (code, len(telling)) == (3, 1), told


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["password", "nobody", "authority", "no-certificate"])
def test_a_route_does_not_start_with_wrong_credentials(
    tubemq_locked: LockedTubeMQ, topics: tuple[str, str], mqbridge: Check, wrong: WrongCredentials, kind: str
) -> None:
    changes, expected = wrong.changes[kind]
    code, told = mqbridge("run", route(cluster_of(tubemq_locked, **changes), *topics, fresh_group()))
    assert (code, expected in told) == (3, True), told


@pytest.mark.thorough
def test_a_group_that_is_not_listed_is_reported_before_it_joins(
    tubemq_locked: LockedTubeMQ, topics: tuple[str, str], mqbridge: Check
) -> None:
    closed, target = tubemq_locked.take_topic(1), topics[1]
    tubemq_locked.authorize(closed, "listed")
    admin = {"admin_url": tubemq_locked.admin_url}
    code, told = mqbridge("check", route(cluster_of(tubemq_locked, **admin), closed, target, "unlisted"), "--connect")
    expected = f"group 'unlisted' may not consume topic '{closed}', which is for listed groups only"
    assert (code, expected in told) == (3, True), told
    assert mqbridge("check", route(cluster_of(tubemq_locked, **admin), closed, target, "listed"), "--connect")[0] == 0

    code, told = mqbridge("run", route(cluster_of(tubemq_locked), closed, target, "unlisted"), "--fail-fast")
    expected = f"joining group unlisted for {closed} was refused with 450 CONSUME_GROUP_FORBIDDEN"
    assert (code, expected in told) == (4, True), told


# --- exchanged under load ---------------------------------------------------------------------------------------------


def tls_of(server: LockedTubeMQ) -> Tls:
    identity = server.identity
    return Tls(TlsSettings(authorities=server.authority.certificate, certificate=identity.certificate, key=identity.key))


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A file with the password."""
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    return file


@pytest_asyncio.fixture
async def client(tubemq_locked: LockedTubeMQ, password: Path) -> AsyncIterator[TubeMQClient]:
    url, tls = f"tubemq+ssl://{tubemq_locked.masters}", tls_of(tubemq_locked)
    async with TubeMQClient(url, heartbeat_s=0.5, tls=tls, user=USER, password=Secret(file=password)) as client:
        yield client


async def numbers_of(client: TubeMQClient, topic: str) -> dict[str, list[int]]:
    """Yield the numbers that a new group reads, by partition, in order; the lists grow while it reads."""
    puller = await client.pack_puller(topic, fresh_group())
    found: dict[str, list[int]] = {}

    async def read() -> None:
        while (delivery := await puller.pull()) is not None:
            arrived = [struct.unpack(">I", message.body)[0] for message in decode_all(delivery.pack.messages)]
            found.setdefault(delivery.partition.ref.name, []).extend(arrived)
            delivery.confirm()

    spawn(read(), "test reading")
    return found


@pytest.mark.thorough
@pytest.mark.timeout(280)
async def test_replacing_certificates_under_load_loses_nothing(
    tubemq_locked: LockedTubeMQ, client: TubeMQClient, password: Path, tmp_path: Path
) -> None:
    """Certificate and password are replaced in their files and all connections are renewed, without a restart of the gateway."""
    source, target = tubemq_locked.take_topic(1), tubemq_locked.take_topic(1)
    own = tubemq_locked.authority.issue("client", file="exchanged")
    settings = cluster_of(tubemq_locked, tls=_files(own), auth={"password": {"file": str(password)}})
    addresses = [split_address(tubemq_locked.masters, 0), ("127.0.0.1", tubemq_locked.broker_tls_port)]
    sender, sent, over = await client.partition_sender(source), 0, False
    arrived = await numbers_of(client, target)

    async def send() -> None:
        nonlocal sent
        while not over:
            await sender.send("1:0", struct.pack(">I", sent))
            sent += 1

    config = route(settings, source, target, fresh_group())
    del config["http"]
    async with Network(addresses) as network:
        with GatewayProcess(config, tmp_path, network=network) as gateway:
            sending = spawn(send(), "test sending")
            try:
                await until(lambda: len(arrived.get("1:0", ())) > 100)
                tubemq_locked.authority.issue("client", file="exchanged")
                assert network.cut() >= 2
                await _goes_on(arrived)
                assert "the TLS files changed, new connections use them" in gateway.log

                await asyncio.to_thread(password.write_text, "the-next-one")
                await until(lambda: "does not accept user 'bridge'" in gateway.log)
                tubemq_locked.set_users({USER: "the-next-one"})
                await _goes_on(arrived)
                over = True
                await sending
                await until(lambda: set(arrived["1:0"]) == set(range(sent)))
            finally:
                tubemq_locked.set_users({USER: PASSWORD})
                await cancel(sending)
            first_times = list(dict.fromkeys(arrived["1:0"]))
            assert first_times == list(range(sent))
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def _goes_on(arrived: dict[str, list[int]]) -> None:
    before = len(arrived["1:0"])
    await until(lambda: len(arrived["1:0"]) > before + 200)


# --- visit tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_a_broker_takes_the_masters_tokens_only(tubemq_locked: LockedTubeMQ, client: TubeMQClient) -> None:
    """A Broker checks tokens from a minute after its registration on. A refused client is accepted with the next token."""
    topic = tubemq_locked.take_topic(1)
    sender = await client.partition_sender(topic, max_elapsed_s=0.0)
    await sender.send("1:0", b"good")
    made_up = AuthorizedInfo(visitAuthorizedToken=12345, authAuthorizedToken="x")
    refused: list[str] = []

    async def is_refused() -> bool:
        client.masters.broker_auth = made_up
        try:
            await sender.send("1:0", b"made up")
        except ServerRefused as error:
            refused.append(str(error))
        return bool(refused)

    async with asyncio.timeout(200):
        while not await is_refused():
            await asyncio.sleep(1)
    assert "415" in refused[0]
    assert "Visit Authorized Token is invalid" in refused[0]
    async with asyncio.timeout(60):  # with the next heartbeat
        while client.masters.broker_auth is made_up:
            await asyncio.sleep(0.1)
    await sender.send("1:0", b"good again")


@pytest.mark.thorough
async def test_reading_without_a_group_ignores_the_list_of_allowed_groups(tubemq_locked: LockedTubeMQ) -> None:
    """A read by position contacts only Brokers, which do not have the list."""
    topic = tubemq_locked.take_topic(1)
    tubemq_locked.authorize(topic, "listed")
    settings = {name: value for name, value in cluster_of(tubemq_locked).items() if name != "system"}
    cluster = ADAPTER.make_cluster(f"reader-{uuid4().hex[:4]}", ADAPTER.cluster_model(**settings))
    await cluster.connect()
    try:
        url = f"tubemq+ssl://{tubemq_locked.masters}"
        async with TubeMQClient(url, tls=tls_of(tubemq_locked), user=USER, password=PASSWORD) as client:
            await (await client.partition_sender(topic)).send("1:0", b"one")
        async with aclosing(reading.read(cluster, topic, "1:0", (0, 0))) as batches:
            async for batch in batches:
                assert [message.payload for message in batch.messages] == [b"one"]
                break
        assert {"own certificate", f"certificate of {tubemq_locked.masters}"} <= cluster.expiries.keys()  # type: ignore[attr-defined]
    finally:
        await cluster.close()
