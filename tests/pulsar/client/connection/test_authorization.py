"""Credentials during the life of connections: sent, refreshed at the broker's request, refused; with a scripted broker."""

import asyncio
import logging
import ssl
from collections.abc import Callable

import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused, Unreachable
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.cluster_client import ClusterClient, Timing
from mqbridge.pulsar.client.connection.auth import Auth
from mqbridge.pulsar.client.connection.authorization import AccessDenied
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.wire import client_commands, ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.pulsar.client.broker import URL, Broker, Link, found, until

TOPIC = "persistent://public/default/t"
CHALLENGE = pb.CommandAuthChallenge(challenge=pb.AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh"))


class Source(Auth):
    """Returns `current` once `gate` is open; `asked` has the value of `fresh` of each call."""

    method = "token"

    def __init__(self) -> None:
        self.current = b"one"
        self.failure: ClusterError | None = None
        self.asked: list[bool] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def credentials(self, *, fresh: bool = False) -> bytes:
        self.asked.append(fresh)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return self.current

    @property
    def principal(self) -> str:
        return "app"

    @property
    def description(self) -> str:
        return "a token from somewhere"

    @property
    def remedy(self) -> str:
        return "put a new one there"


def client_with(auth: Auth) -> ClusterClient:
    return ClusterClient(parse_service_url(URL, tls=False), auth=auth, timing=Timing(operation=3.0, request=2.0))


def lets_in(*credentials: bytes) -> Callable[[Link, object], None]:
    def answer(link: Link, frame) -> None:
        if frame.command.connect.auth_data in credentials:
            link.send(connected=pb.CommandConnected(server_version="scripted", protocol_version=21))
        else:
            link.error(ids.NO_REQUEST, pb.AuthenticationError, "Failed to authenticate")

    return answer


async def test_connect_contains_the_credentials(broker: Broker) -> None:
    client = client_with(Source())
    await client.connect()
    (connect,) = broker.asked[BaseCommand.CONNECT]
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"one")
    await client.close()


async def test_commands_are_received_while_a_challenge_is_answered(broker: Broker) -> None:
    auth = Source()
    client = client_with(auth)
    await client.connect()
    auth.gate.clear()
    auth.current = b"two"
    broker.link.send(authChallenge=CHALLENGE)
    broker.link.send(authChallenge=CHALLENGE)
    await until(lambda: len(auth.asked) == 2)
    broker.link.send_bytes(client_commands.PING)
    await until(lambda: broker.asked[BaseCommand.PONG])
    assert not broker.asked[BaseCommand.AUTH_RESPONSE]
    auth.gate.set()
    await until(lambda: broker.asked[BaseCommand.AUTH_RESPONSE])
    (answer,) = broker.asked[BaseCommand.AUTH_RESPONSE]
    assert (answer.response.auth_method_name, answer.response.auth_data) == ("token", b"two")
    assert auth.asked == [False, True]
    await client.close()


async def test_a_challenge_gets_the_last_credentials_if_reading_fails(broker: Broker, caplog) -> None:
    auth = Source()
    client = client_with(auth)
    await client.connect()
    auth.failure = ClusterError("the vault is sealed")
    broker.link.send(authChallenge=CHALLENGE)
    await until(lambda: broker.asked[BaseCommand.AUTH_RESPONSE])
    assert broker.asked[BaseCommand.AUTH_RESPONSE][0].response.auth_data == b"one"
    assert "sending the previous credentials: the vault is sealed" in caplog.text
    await client.close()


async def test_a_connection_that_ends_cancels_reading_credentials(broker: Broker) -> None:
    auth = Source()
    client = client_with(auth)
    await client.connect()
    auth.gate.clear()
    broker.link.send(authChallenge=CHALLENGE)
    await until(lambda: len(auth.asked) == 2)
    await client.close()
    auth.gate.set()
    await asyncio.sleep(0)
    assert not broker.asked[BaseCommand.AUTH_RESPONSE]


async def test_refused_credentials_are_fatal_at_a_cluster_that_never_accepted_them(broker: Broker) -> None:
    broker.on[BaseCommand.CONNECT] = lets_in(b"two")
    client = client_with(Source())
    with pytest.raises(ServerRefused) as caught:
        await client.connect()
    assert (caught.value.failure, caught.value.code) == (Failure.FATAL, pb.AuthenticationError)
    assert str(caught.value) == (
        "broker:6650 refuses a token from somewhere: put a new one there (method token; the broker says: Failed to authenticate)"
    )
    await client.close()


async def test_later_refused_credentials_are_temporary(broker: Broker, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("mqbridge.pulsar.client.connection.connection_pool.REFUSED_PAUSE_S", 0.0)
    broker.on[BaseCommand.CONNECT] = lets_in(b"one")
    auth = Source()
    client = client_with(auth)
    producer = client.producer(TOPIC)
    await producer.opened()
    connectivity = client._pool.connectivity
    assert connectivity.credentials_accepted
    broker.on[BaseCommand.CONNECT] = lets_in(b"two")
    broker.link.error(ids.NO_REQUEST, pb.AuthenticationError, "Failed to authenticate")
    sent = producer.send(MessageMetadata(), b"1")
    await until(lambda: connectivity.failures > 2)
    assert connectivity.reason is not None
    assert "refuses a token from somewhere" in connectivity.reason
    with pytest.raises(Unreachable) as caught:
        await client.connect()
    assert caught.value.failure is Failure.RETRY
    assert not sent.done()
    auth.current = b"two"
    await sent
    assert connectivity.reason is None
    assert auth.asked[-1], "after a refusal they are to be fresh"
    records = [record for record in caplog.records if record.name == "mqbridge.net.connectivity"]
    assert [record.levelname for record in records] == ["WARNING", "INFO"], "once when it begins, once when it is over"
    await producer.close()
    await client.close()


async def test_all_partitions_share_a_refusal_of_credentials(broker: Broker, caplog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition retries by itself, but the source of credentials, which may be remote, must not be read by all of them."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("mqbridge.pulsar.client.connection.connection_pool.REFUSED_PAUSE_S", 1e6)
    broker.on[BaseCommand.CONNECT] = lets_in(b"one")
    auth = Source()
    client = client_with(auth)
    producers = [client.producer(f"{TOPIC}-{number}") for number in range(50)]
    for producer in producers:
        await producer.opened()
    broker.on[BaseCommand.CONNECT] = lets_in(b"two")
    broker.link.error(ids.NO_REQUEST, pb.AuthenticationError, "Failed to authenticate")
    sent = [producer.send(MessageMetadata(), b"1") for producer in producers]
    await until(lambda: caplog.text.count("retrying in") > 3 * len(producers))
    assert len(auth.asked) == 2
    auth.current = b"two"
    monkeypatch.setattr("mqbridge.pulsar.client.connection.connection_pool.REFUSED_PAUSE_S", 0.0)
    await asyncio.gather(*sent)
    assert len(auth.asked) == 3
    for producer in producers:
        await producer.close()
    await client.close()


async def test_an_unreadable_credentials_source_is_reported(broker: Broker) -> None:
    auth = Source()
    auth.failure = ClusterError("the vault is sealed", Failure.FATAL)
    client = client_with(auth)
    with pytest.raises(ClusterError, match="the vault is sealed"):
        await client.connect()
    assert not broker.links
    await client.close()


async def test_with_tls_brokers_are_reached_at_their_tls_address(broker: Broker) -> None:
    client = ClusterClient(parse_service_url("pulsar+ssl://broker", tls=True), tls=Tls(), timing=Timing(operation=0.0))
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(
        link, frame, "pulsar://plain:6650", brokerServiceUrlTls="pulsar+ssl://other"
    )
    producer = client.producer(TOPIC)
    await producer.opened()
    assert [link.address for link in broker.links] == ["broker", "other"]
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, "pulsar://plain:6650")
    with pytest.raises(ClusterError, match="has no address for TLS"):
        await client.check_producing(TOPIC)
    assert all(link.address != "plain" for link in broker.links)
    await producer.close()
    await client.close()


async def test_our_certificate_may_be_refused_after_the_handshake(broker: Broker, caplog) -> None:
    """With TLS 1.3 the refusal arrives in place of the first response."""

    def refuses_certificate(link: Link, _: object) -> None:
        link.open = False
        link.endpoint.connection_lost(ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] alert"))

    client = ClusterClient(parse_service_url("pulsar+ssl://broker", tls=True), tls=Tls())
    healthy = broker.on[BaseCommand.CONNECT]
    broker.on[BaseCommand.CONNECT] = refuses_certificate
    with pytest.raises(Unreachable) as caught:
        await client.connect()
    assert str(caught.value) == (
        "broker:6651 cannot be reached by TLS: the server demands a certificate of ours: give tls.certificate and tls.key"
    )
    assert (caught.value.failure, caplog.text) == (Failure.FATAL, "")
    broker.on[BaseCommand.CONNECT] = healthy
    await client.connect()
    broker.link.drop()
    broker.on[BaseCommand.CONNECT] = refuses_certificate
    await until(lambda: not broker.link.endpoint.alive)
    with pytest.raises(Unreachable) as caught:
        await client.connect()
    assert caught.value.failure is Failure.RETRY
    assert client._pool.connectivity.reason is not None
    await client.close()


# --- rights -----------------------------------------------------------------------------------------------------------


def refuses(link: Link, frame) -> None:
    ((_, body),) = [pair for pair in frame.command.ListFields() if pair[0].number != 1]
    link.error(body.request_id, pb.AuthorizationError, "Client is not authorized")


async def test_an_error_for_a_missing_permission_names_the_role_and_action(broker: Broker) -> None:
    client = client_with(Source())
    broker.on[BaseCommand.PRODUCER] = broker.on[BaseCommand.SUBSCRIBE] = refuses
    producer = client.producer(TOPIC)
    with pytest.raises(AccessDenied) as caught:
        await producer.opened()
    assert str(caught.value) == (
        f"role 'app' may not produce to {TOPIC} (AuthorizationError): grant it with "
        "`pulsar-admin namespaces grant-permission public/default --role app --actions produce`"
    )
    await producer.close()
    with pytest.raises(AccessDenied, match=f"role 'app' may not consume from {TOPIC} with subscription 's' .*--actions consume`"):
        await client.consumer(TOPIC, Subscription("s"))
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(
        link, frame, "", response=pb.CommandLookupTopicResponse.Failed, error=pb.AuthorizationError, message="no"
    )
    with pytest.raises(AccessDenied, match=f"role 'app' may not look up {TOPIC} .*--actions produce,consume`"):
        await client.consumer(TOPIC, Subscription("s"))
    assert caught.value.failure is Failure.FATAL
    await client.close()


async def test_a_failed_permission_check_at_the_broker_is_retried(broker: Broker) -> None:
    """For example, while its metadata store is unreachable; the broker then also reports AuthorizationError."""
    client = client_with(Source())
    producer = client.producer(TOPIC)
    await producer.opened()
    refused: list[object] = []

    def undecided(link: Link, frame) -> None:
        refused.append(frame)
        text = "Exception occurred while trying to authorize lookup"
        failed = {"response": pb.CommandLookupTopicResponse.Failed, "error": pb.AuthorizationError, "message": text}
        found(link, frame, "", **failed)

    broker.on[BaseCommand.LOOKUP] = undecided
    broker.link.drop()
    sent = producer.send(MessageMetadata(), b"1")
    await until(lambda: len(refused) > 1)
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, URL)
    await sent
    await producer.close()
    await client.close()


async def test_a_subscription_that_must_begin_with_the_role(broker: Broker) -> None:
    text = "The subscription name needs to be prefixed by the authentication role, like app-xxxx"
    broker.on[BaseCommand.SUBSCRIBE] = lambda link, frame: link.error(
        frame.command.subscribe.request_id, pb.AuthorizationError, text
    )
    client = client_with(Source())
    with pytest.raises(AccessDenied, match="must begin with the role"):
        await client.check_consuming(TOPIC, "s")
    await client.close()


async def test_permission_checks_leave_nothing_in_the_cluster(broker: Broker) -> None:
    client = client_with(Source())
    await client.check_producing(TOPIC)
    assert len(broker.asked[BaseCommand.PRODUCER]) == len(broker.asked[BaseCommand.CLOSE_PRODUCER]) == 1
    broker.on[BaseCommand.SUBSCRIBE] = lambda link, frame: link.error(frame.command.subscribe.request_id, pb.NotAllowedError)
    await client.check_consuming(TOPIC, "s")
    (asked,) = broker.asked[BaseCommand.SUBSCRIBE]
    assert (asked.subscription, asked.durable, asked.read_compacted) == ("s", False, True)
    broker.on[BaseCommand.SUBSCRIBE] = broker.on[BaseCommand.PRODUCER] = refuses
    with pytest.raises(AccessDenied):
        await client.check_consuming(TOPIC, "s")
    with pytest.raises(AccessDenied):
        await client.check_producing(TOPIC)
    await client.close()


async def test_an_invalid_topic_name_is_left_to_the_broker(broker: Broker) -> None:
    """The caller gets the broker's error: the code that explains missing permissions must not fail for such a name."""
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(
        link,
        frame,
        "",
        response=pb.CommandLookupTopicResponse.Failed,
        error=pb.InvalidTopicName,
        message="Invalid topic name",
    )
    client = client_with(Source())
    producer = client.producer("persistent://public/default")
    with pytest.raises(ClusterError, match="InvalidTopicName") as caught:
        await producer.opened()
    assert caught.value.failure is Failure.FATAL
    await producer.close()
    await client.close()


async def test_a_bug_during_registration_fails_waiting_tasks(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr("mqbridge.pulsar.client.producer.entry_producer.explain_topic_denial", fails)
    client = client_with(Source())
    producer = client.producer(TOPIC)
    with pytest.raises(ClusterError, match="unexpected ArithmeticError"):
        await producer.opened()
    assert "ArithmeticError" in caplog.text
    await producer.close()
    await client.close()
