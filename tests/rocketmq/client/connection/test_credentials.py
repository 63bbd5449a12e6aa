"""Signed requests: keys are read again after a refusal, a request is repeated once, and errors name the remedy but no secret."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, ConnectionLost, Failure, PeerSilent, ServerRefused
from mqbridge.net.secret import Secret
from mqbridge.rocketmq.client.cluster_client import ClusterClient, Timing
from mqbridge.rocketmq.client.connection import credentials
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.credentials import Credentials, Keys
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.signing import is_signed_by
from tests.rocketmq.client.broker import A, B, Cluster, Link, hangs_up, refuses, scripted_client, silent, success, until

MAX = Code.GET_MAX_OFFSET
FAILED = "check signature failed."
OLD_FAILED = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=app, org.apache.rocketmq"
NO_TOPIC = "User:app has no permission to access Topic:T from 10.0.0.1, no matched policies."
REPLACES = ", which replaces the user's other permissions for it"
FIRST, SECOND = "first-secret-of-app", "second-secret-of-app"


class Verifying:
    """Makes the brokers of `cluster` verify signatures, and refuse every request that is not signed with `secret`."""

    def __init__(self, cluster: Cluster, secret: str, status: int = Status.NO_PERMISSION, remark: str = FAILED) -> None:
        self.secret, self.refused = secret, 0
        self._status, self._remark = status, remark
        for code in (MAX, *cluster.on):
            if code not in (Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO):  # name servers verify no signatures
                cluster.on[code] = self._verified(cluster.on.get(code, success))

    def _verified(self, handler):
        def answer(link: Link, request: Command) -> None:
            if is_signed_by(request.ext, request.body, self.secret):
                handler(link, request)
            else:
                self.refused += 1
                link.answer(request, self._status, remark=self._remark)

        return answer


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(FIRST)
    return path


@pytest_asyncio.fixture
async def client(cluster: Cluster, secret_file: Path) -> AsyncIterator[ClusterClient]:
    client = ClusterClient(
        ["ns:9876"], timing=Timing(request=2.0), credentials=Credentials(Secret("app"), Secret(file=secret_file))
    )
    await client.connect()
    yield client
    await client.close()


def change(secret_file: Path, text: str) -> None:
    secret_file.write_text(text)


async def test_every_request_is_signed(cluster: Cluster, client: ClusterClient, secret_file: Path):
    broker = Verifying(cluster, FIRST)
    ext = {"topic": "T"}
    await client.request(A, MAX, ext, b"x")
    await client.oneway(A, Code.UPDATE_CONSUMER_OFFSET, ext)
    producer = client.producer("P", "T")
    await producer.send_single((await producer.queues())[0], b"m", b"")
    await client.heartbeat()
    await until(lambda: cluster.requests[Code.UPDATE_CONSUMER_OFFSET])
    await client.close()
    assert cluster.requests[Code.UNREGISTER_CLIENT]
    for code, requests in cluster.requests.items():
        assert all(is_signed_by(request.ext, request.body, FIRST) for request in requests), code
        assert all(request.ext["AccessKey"] == "app" for request in requests)
    assert broker.refused == 0
    assert ext == {"topic": "T"}, "the caller's fields stay as they are"


async def test_the_security_token_is_sent_with_the_keys(cluster: Cluster):
    credentials = Credentials(Secret("app"), Secret(FIRST), Secret("the-token"))
    async with ClusterClient(["ns:9876"], credentials=credentials) as client:
        Verifying(cluster, FIRST)
        await client.request(A, MAX)
        assert cluster.requests[MAX][0].ext["SecurityToken"] == "the-token"


async def test_a_query_by_unique_key_uses_a_version_whose_signature_excludes_the_key_flag(
    cluster: Cluster, client: ClusterClient
):
    Verifying(cluster, FIRST)
    await client.request(A, MAX, {"_UNIQUE_KEY_QUERY": "true"})
    assert cluster.requests[MAX][0].version == 399


async def test_a_heartbeat_checks_the_credentials_before_the_first_request(cluster: Cluster, client: ClusterClient):
    Verifying(cluster, FIRST)
    await client.request(A, MAX)
    assert [request.code for request in cluster.requests_to[A]] == [Code.HEART_BEAT, MAX]
    assert client.connectivity.credentials_accepted


@pytest.mark.parametrize(("status", "remark"), [(Status.NO_PERMISSION, FAILED), (Status.SYSTEM_ERROR, OLD_FAILED)])
async def test_changed_keys_are_read_after_a_refusal(
    cluster: Cluster, client: ClusterClient, secret_file: Path, status: int, remark: str
):
    broker = Verifying(cluster, FIRST, status, remark)
    await client.request(A, MAX)
    broker.secret = SECOND
    change(secret_file, SECOND)
    answers = await asyncio.gather(*(client.request(A, MAX, {"n": str(n)}) for n in range(20)))
    assert [answer.code for answer in answers] == [0] * 20
    assert broker.refused == 20
    await client.request(A, MAX)
    assert broker.refused == 20, "later requests are signed with the new keys"


async def test_sends_continue_in_order_after_keys_are_replaced(cluster: Cluster, client: ClusterClient, secret_file: Path):
    broker = Verifying(cluster, FIRST)
    producer = client.producer("P", "T")
    queue = (await producer.route()).write_queues()[0]
    for number in range(40):
        if number == 20:
            broker.secret = SECOND
            change(secret_file, SECOND)
        sent = await producer.send_single(queue, b"%d" % number, b"")
    (stored,) = cluster.stored.values()
    assert [int(body) for body, _ in stored] == list(range(40))
    assert sent.offset == 39
    assert client.connectivity.retries == 0, "the connection repeats refused requests, not the producer"


async def test_a_refused_request_is_repeated_only_once(cluster: Cluster, client: ClusterClient, secret_file: Path):
    broker = Verifying(cluster, FIRST)
    await client.request(A, MAX)
    broker.secret = "third-secret-of-app"
    change(secret_file, SECOND)
    with pytest.raises(AccessRefused) as caught:
        await client.request(A, MAX)
    assert (broker.refused, caught.value.of_credentials) == (2, True)
    assert caught.value.failure is Failure.RETRY, "a cluster that admitted the client may do so again"


async def test_a_refusal_is_raised_at_once_if_the_keys_have_not_changed(cluster: Cluster, client: ClusterClient):
    broker = Verifying(cluster, "another")
    with pytest.raises(AccessRefused, match=r"a:10911 refuses access key 'app' .*: check auth\.secret_key") as caught:
        await client.request(A, MAX)
    assert broker.refused == 1
    assert caught.value.failure is Failure.FATAL, "no broker has admitted the client yet"
    assert not cluster.links_to(A)


async def test_keys_are_read_again_for_each_new_connection(cluster: Cluster, client: ClusterClient, secret_file: Path):
    broker = Verifying(cluster, FIRST)
    await client.request(A, MAX)
    broker.secret = SECOND
    change(secret_file, SECOND)
    await client.request(B, MAX)
    await client.request(A, MAX)
    assert broker.refused == 0


async def test_a_secret_command_is_not_run_for_every_refusal(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mqbridge.net.secret.MIN_COMMAND_PAUSE_S", 0.0)
    runs = tmp_path / "runs"
    secret = Secret(command=["sh", "-c", f"echo run >> {runs}; echo {FIRST}"])
    async with ClusterClient(["ns:9876"], credentials=Credentials(Secret("app"), secret)) as client:
        broker = Verifying(cluster, FIRST)
        await client.request(A, MAX)
        before, broker.secret = len(runs.read_text().split()), SECOND
        monkeypatch.setattr(credentials, "RENEW_PAUSE_S", 3600.0)
        for _ in range(20):
            with pytest.raises(AccessRefused):
                await client.request(A, MAX)
        assert len(runs.read_text().split()) == before + 1
        monkeypatch.setattr(credentials, "RENEW_PAUSE_S", 0.0)
        with pytest.raises(AccessRefused):
            await client.request(A, MAX)
        assert len(runs.read_text().split()) == before + 2, "the command runs again after RENEW_PAUSE_S"


async def test_the_error_of_an_unreadable_secret_file_names_the_file(cluster: Cluster, tmp_path: Path):
    client = ClusterClient(["ns:9876"], credentials=Credentials(Secret("app"), Secret(file=tmp_path / "absent")))
    with pytest.raises(ClusterError, match=r"absent cannot be read") as caught:
        await client.connect()
    assert caught.value.failure is Failure.FATAL
    await client.close()


async def test_a_connection_lost_while_requests_are_repeated_logs_no_error(
    cluster: Cluster, client: ClusterClient, secret_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    broker = Verifying(cluster, FIRST)
    await client.request(A, MAX)
    broker.secret, read = SECOND, Credentials.read
    change(secret_file, SECOND)

    async def read_and_lose(self: Credentials, *, instead_of: Keys | None = None) -> None:
        await read(self, instead_of=instead_of)
        if (connection := client.pool.ready(A)) is not None:
            connection.endpoint.abort(PeerSilent("silent"))

    monkeypatch.setattr(Credentials, "read", read_and_lose)
    lost = await asyncio.gather(*(client.request(A, MAX) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, PeerSilent) for error in lost), lost
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_connection_lost_while_keys_are_read_fails_pending_requests(
    cluster: Cluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
):
    Verifying(cluster, FIRST)
    await client.request(A, MAX)
    cluster.on[MAX] = refuses(16, FAILED)
    reading = asyncio.Event()

    async def read(*_: object, **__: object) -> None:
        reading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Credentials, "read", read)
    waiting = asyncio.ensure_future(client.request(A, MAX))
    await reading.wait()
    cluster.link_to(A).drop()
    with pytest.raises(ConnectionLost):
        await waiting


@pytest.mark.parametrize(
    ("code", "status", "remark", "words"),
    [
        (
            Code.SEND_MESSAGE_V2,
            16,
            NO_TOPIC,
            (
                "access key 'app' may not produce to topic 'T' (SEND_MESSAGE_V2 at a:10911, from 10.0.0.1): "
                "grant it with `mqadmin createAcl -s User:app -r Topic:T -a Pub -d Allow`" + REPLACES
            ),
        ),
        (
            Code.PULL_MESSAGE,
            16,
            NO_TOPIC.replace("Topic:T", "Group:G"),
            (
                "access key 'app' may not consume as group 'G' (PULL_MESSAGE at a:10911, from 10.0.0.1): "
                "grant it with `mqadmin createAcl -s User:app -r Group:G -a Sub,Get -d Allow`" + REPLACES
            ),
        ),
        (
            Code.GET_MAX_OFFSET,
            16,
            NO_TOPIC,
            (
                "access key 'app' may not query topic 'T' (GET_MAX_OFFSET at a:10911, from 10.0.0.1): "
                "grant it with `mqadmin createAcl -s User:app -r Topic:T -a Sub,Get -d Allow`" + REPLACES
            ),
        ),
        (
            Code.UPDATE_AND_CREATE_TOPIC,
            16,
            NO_TOPIC,
            (
                "access key 'app' may not create topic 'T' (UPDATE_AND_CREATE_TOPIC at a:10911, from 10.0.0.1): "
                "grant it with `mqadmin createAcl -s User:app -r Topic:T -a Create -d Allow`" + REPLACES
            ),
        ),
        (
            Code.SEND_MESSAGE_V2,
            1,
            "org.apache.rocketmq.acl.common.AclException: No default permission for topic:T, org.apache",
            (
                "access key 'app' may not produce to topic 'T' (SEND_MESSAGE_V2 at a:10911): "
                "give its account topicPerms T=PUB in plain_acl.yml"
            ),
        ),
        (
            Code.HEART_BEAT,
            1,
            "org.apache.rocketmq.acl.common.AclException: No default permission for group:G, org.apache",
            (
                "access key 'app' may not consume as group 'G' (HEART_BEAT at a:10911): "
                "give its account groupPerms G=SUB in plain_acl.yml"
            ),
        ),
        (
            Code.UPDATE_AND_CREATE_TOPIC,
            1,
            "org.apache.rocketmq.acl.common.AclException: Need admin permission for request code=17, but accessKey=app is not, o",
            (
                "access key 'app' may not administer (UPDATE_AND_CREATE_TOPIC at a:10911): "
                "give its account admin: true in plain_acl.yml, or have an administrator do it"
            ),
        ),
    ],
)
async def test_the_error_of_a_missing_permission_names_the_key_the_action_and_the_remedy(
    cluster: Cluster, client: ClusterClient, code: int, status: int, remark: str, words: str
):
    await client.pool.get(A)
    cluster.on[code] = refuses(status, remark)
    with pytest.raises(AccessRefused) as caught:
        await client.request(A, code)
    assert str(caught.value) == words
    assert (caught.value.failure, caught.value.of_credentials) == (Failure.FATAL, False)
    assert len(cluster.requests[code]) == (2 if code == Code.HEART_BEAT else 1), "other keys do not help"


async def test_a_send_without_permission_is_fatal_at_once(cluster: Cluster, client: ClusterClient):
    producer = client.producer("P", "T")
    cluster.on[Code.SEND_MESSAGE_V2] = refuses(16, NO_TOPIC)
    with pytest.raises(ServerRefused, match="'app' may not produce to topic 'T'") as caught:
        await producer.send_single((await producer.route()).write_queues()[0], b"m", b"")
    assert caught.value.failure is Failure.FATAL
    assert len(cluster.requests[Code.SEND_MESSAGE_V2]) == 1


async def test_the_error_of_missing_credentials_names_the_option(cluster: Cluster):
    async with scripted_client() as client:
        for status, remark in (
            (16, "username cannot be null."),
            (1, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, org.apache.rocketmq.acl.plain.P"),
        ):
            cluster.on[MAX] = refuses(status, remark)
            with pytest.raises(AccessRefused, match=r"requires credentials: set auth\.access_key") as caught:
                await client.request(A, MAX)
            assert caught.value.failure is Failure.FATAL


async def test_the_error_of_a_plain_connection_closed_by_the_server_suggests_tls(cluster: Cluster):
    async with scripted_client() as client:
        cluster.on[MAX] = hangs_up
        with pytest.raises(ConnectionLost, match="switch on the option `tls`"):
            await client.request(A, MAX)


@pytest.mark.parametrize(("admitted", "failure"), [(False, Failure.FATAL), (True, Failure.RETRY)])
async def test_a_certificate_refused_after_the_handshake_is_fatal_until_a_broker_admitted_the_client(
    cluster: Cluster, admitted: bool, failure: Failure
):
    """In TLS 1.3, the server's alert arrives instead of the first response."""
    async with scripted_client() as client:
        client.connectivity.credentials_accepted = admitted
        cluster.on[MAX] = lambda link, _: link.drop(ssl.SSLError(1, "[SSL: SSLV3_ALERT_BAD_CERTIFICATE] bad certificate"))
        with pytest.raises(ConnectionLost) as caught:
            await client.request(A, MAX)
        assert caught.value.failure is failure


async def test_sends_wait_while_a_cluster_that_admitted_the_client_refuses_its_keys(
    cluster: Cluster, client: ClusterClient, secret_file: Path
):
    broker = Verifying(cluster, FIRST)
    producer = client.producer("P", "T")
    queue = (await producer.route()).write_queues()[0]
    await producer.send_single(queue, b"0", b"")
    broker.secret = SECOND
    sends = [producer.send_single(queue, b"%d" % number, b"") for number in range(1, 4)]
    await until(lambda: client.connectivity.retries)
    assert not any(send.done() for send in sends)
    change(secret_file, SECOND)
    assert [result.offset for result in await asyncio.gather(*sends)] == [1, 2, 3]


async def test_keys_that_change_at_every_refusal_are_tried_once(cluster: Cluster, client: ClusterClient, secret_file: Path):
    broker = Verifying(cluster, FIRST)
    await client.request(A, MAX)
    broker.secret = "secret-that-no-client-has"

    def refuse(link: Link, request: Command) -> None:
        broker.refused += 1
        change(secret_file, f"secret number {broker.refused}")
        link.answer(request, Status.NO_PERMISSION, remark=FAILED)

    cluster.on[MAX] = refuse
    with pytest.raises(AccessRefused):
        await client.request(A, MAX)
    assert broker.refused == 2


async def test_secrets_are_not_shown_in_logs_and_errors(
    cluster: Cluster, client: ClusterClient, secret_file: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    credentials = Credentials(Secret("app"), Secret(FIRST), Secret("the-token"))
    await credentials.read()
    assert FIRST not in f"{credentials!r} {credentials.keys!r}"
    assert "the-token" not in f"{credentials!r} {credentials.keys!r}"
    Verifying(cluster, "another")
    with pytest.raises(AccessRefused) as caught:
        await client.request(A, MAX)
    cluster.on[Code.HEART_BEAT] = success
    cluster.on[MAX] = silent
    assert FIRST not in caplog.text + repr(caught.value) + str(caught.value)
