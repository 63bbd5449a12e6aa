"""Handshake, keep-alive, lookups."""

import asyncio

import pytest

from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.net.window import RequestWindow
from mqbridge.pulsar.client.connection.connection import MAX_BYTES_IN_FLIGHT, MAX_SENDS_IN_FLIGHT
from mqbridge.pulsar.client.connection.service_url import Address, parse_service_url
from mqbridge.pulsar.wire import client_commands, ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.pulsar.client.broker import URL, Broker, found, in_turn, scripted_client, silent, success, until

TOPIC = "persistent://public/default/t"
LookupAnswer = pb.CommandLookupTopicResponse


def test_service_urls():
    assert parse_service_url("pulsar://a:1,b:2", tls=False) == [Address("a", 1), Address("b", 2)]
    assert parse_service_url("pulsar://a/, pulsar://[::1]:7", tls=False) == [Address("a", 6650), Address("::1", 7)]
    for wrong in ("http://a:1", "pulsar+ssl://a:1", "pulsar://", "pulsar://a:x", "pulsar://a:0"):
        with pytest.raises(ValueError, match=r"."):
            parse_service_url(wrong, tls=False)


async def test_connect_contains_version_method_and_features(broker: Broker, client):
    assert await client.connect() == "scripted"
    (connect,) = broker.asked[BaseCommand.CONNECT]
    assert (connect.protocol_version, connect.auth_method_name) == (21, "none")
    assert not connect.HasField("proxy_to_broker_url")
    assert connect.feature_flags.supports_get_partitioned_metadata_without_auto_creation
    assert not connect.feature_flags.supports_topic_watchers


async def test_a_broker_that_never_responds_to_connect(broker: Broker):
    broker.on[BaseCommand.CONNECT] = silent
    with pytest.raises(RequestTimeout):
        await scripted_client(connect=0.05).connect()
    assert not broker.link.open


async def test_a_broker_that_refuses_the_connection(broker: Broker, client):
    broker.on[BaseCommand.CONNECT] = lambda link, _: link.error(ids.NO_REQUEST, pb.AuthenticationError)
    with pytest.raises(ServerRefused) as caught:
        await client.connect()
    assert caught.value.failure is Failure.FATAL


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff"])
async def test_a_server_with_another_protocol(broker: Broker, client, answer):
    broker.on[BaseCommand.CONNECT] = lambda link, _: link.send_bytes(answer)
    with pytest.raises(ClusterError) as caught:
        await client.connect()
    assert caught.value.failure is Failure.FATAL


async def test_a_broker_that_closes_the_connection_during_the_handshake(broker: Broker, client):
    broker.on[BaseCommand.CONNECT] = lambda link, _: link.drop()
    with pytest.raises(ConnectionLost):
        await client.connect()


async def test_pings_are_answered(broker: Broker, client):
    await client.connect()
    broker.link.send_bytes(client_commands.PING)
    await until(lambda: broker.asked[BaseCommand.PONG])


async def test_a_silent_connection_is_aborted_and_a_responding_one_is_kept(broker: Broker):
    client = scripted_client(keep_alive=0.2)
    await client.connect()
    await until(lambda: len(broker.asked[BaseCommand.PING]) >= 3)
    assert broker.link.open
    broker.on[BaseCommand.PING] = silent
    await until(lambda: not broker.link.open)
    await client.close()


async def test_a_challenge_is_answered_with_credentials(broker: Broker, client):
    await client.connect()
    challenge = pb.AuthData(auth_method_name="none", auth_data=b"PulsarAuthRefresh")
    broker.link.send(authChallenge=pb.CommandAuthChallenge(challenge=challenge))
    await until(lambda: broker.asked[BaseCommand.AUTH_RESPONSE])


async def test_unknown_commands_are_ignored(broker: Broker, client):
    await client.connect()
    broker.link.send(topicMigrated=pb.CommandTopicMigrated(resource_id=1, resource_type=pb.CommandTopicMigrated.Producer))
    broker.link.send_bytes(b"\x00\x00\x00\x09\x00\x00\x00\x05\x08\x46\xb2\x04\x00")
    broker.link.send(success=pb.CommandSuccess(request_id=12345))
    assert broker.link.open


async def test_a_response_of_the_wrong_type_ends_the_connection(broker: Broker, client):
    broker.on[BaseCommand.LOOKUP] = success
    producer = client.producer(TOPIC)
    await until(lambda: len(broker.links) > 1)
    assert not broker.links[0].open
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, URL)
    await producer.opened()
    await producer.close()


# --- lookup -----------------------------------------------------------------------------------------------------------


async def test_redirects_are_followed(broker: Broker, client):
    def redirect(link, frame):
        found(link, frame, "pulsar://other:7000", response=LookupAnswer.Redirect, authoritative=True)

    broker.on[BaseCommand.LOOKUP] = in_turn(redirect, lambda link, frame: found(link, frame, "pulsar://third:7000"))
    producer = client.producer(TOPIC)
    await producer.opened()
    assert [link.address for link in broker.links] == ["broker", "other", "third"]
    assert [asked.authoritative for asked in broker.asked[BaseCommand.LOOKUP]] == [False, True]
    await producer.close()


async def test_endless_redirects_are_an_error(broker: Broker):
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, URL, response=LookupAnswer.Redirect)
    client = scripted_client(operation=0.0)
    producer = client.producer(TOPIC)
    with pytest.raises(ClusterError, match="redirects"):
        await producer.opened()
    await producer.close()
    await client.close()


async def test_a_connection_through_a_proxy_names_the_broker(broker: Broker, client):
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, "pulsar://inner:1", proxy_through_service_url=True)
    producer = client.producer(TOPIC)
    await producer.opened()
    assert [link.address for link in broker.links] == ["broker", "broker"]
    assert [connect.proxy_to_broker_url for connect in broker.asked[BaseCommand.CONNECT]] == ["", "inner:1"]
    await producer.close()


async def test_several_service_addresses_are_tried_one_after_another(broker: Broker):
    broker.unreachable = {"one", "two"}
    client = scripted_client("pulsar://one,two,broker")
    await client.connect()
    assert [link.address for link in broker.links] == ["broker"]
    broker.unreachable = {"one", "two", "broker"}
    broker.link.drop()
    await until(lambda: not broker.link.endpoint.alive)
    with pytest.raises(Unreachable):
        await client.connect()
    await client.close()


async def test_transient_lookup_errors_are_retried_and_others_are_not(broker: Broker, client):
    def failed(code):
        def answer(link, frame):
            found(link, frame, "", response=LookupAnswer.Failed, error=code, message="no")

        return answer

    def later(link, frame):
        found(link, frame, URL)

    broker.on[BaseCommand.LOOKUP] = in_turn(failed(pb.ServiceNotReady), failed(pb.TooManyRequests), later)
    producer = client.producer(TOPIC)
    await producer.opened()
    await producer.close()
    broker.on[BaseCommand.LOOKUP] = failed(pb.AuthorizationError)
    refused = client.producer(TOPIC)
    with pytest.raises(ClusterError, match="AuthorizationError") as caught:
        await refused.opened()
    assert caught.value.failure is Failure.FATAL
    await refused.close()


async def test_partition_metadata(broker: Broker, client):
    def answer(**fields):
        def give(link, frame):
            request_id = frame.command.partitionMetadata.request_id
            link.send(partitionMetadataResponse=pb.CommandPartitionedTopicMetadataResponse(request_id=request_id, **fields))

        return give

    kinds = pb.CommandPartitionedTopicMetadataResponse
    missing = answer(response=kinds.Failed, error=pb.TopicNotFound, message="")
    broker.on[BaseCommand.PARTITIONED_METADATA] = in_turn(
        answer(response=kinds.Success, partitions=4), missing, answer(response=kinds.Failed, error=pb.AuthorizationError)
    )
    assert await client.partitions(TOPIC) == 4
    assert await client.partitions(TOPIC) is None
    with pytest.raises(ServerRefused):
        await client.partitions(TOPIC)
    assert not any(asked.metadata_auto_creation_enabled for asked in broker.asked[BaseCommand.PARTITIONED_METADATA])


async def test_concurrent_calls_share_one_attempt_to_connect(broker: Broker):
    broker.on[BaseCommand.CONNECT] = silent
    client = scripted_client(connect=0.05)
    done = await asyncio.gather(*[client.connect() for _ in range(20)], return_exceptions=True)
    assert all(isinstance(error, RequestTimeout) for error in done)
    assert len(broker.links) == 1
    await client.close()


# --- the window -------------------------------------------------------------------------------------------------------


def test_the_window_is_bounded_and_wakes_waiters():
    window, woken = RequestWindow(MAX_SENDS_IN_FLIGHT, MAX_BYTES_IN_FLIGHT), []
    for _ in range(MAX_SENDS_IN_FLIGHT):
        assert window.reserve(10, lambda: None)
    assert not window.reserve(10, lambda: woken.append(1))
    window.release(10)
    assert woken == [1]


def test_the_window_counts_bytes_and_always_takes_one():
    window = RequestWindow(MAX_SENDS_IN_FLIGHT, MAX_BYTES_IN_FLIGHT)
    assert window.reserve(2 * MAX_BYTES_IN_FLIGHT, lambda: None)
    assert not window.reserve(1, lambda: None)
    window.release(2 * MAX_BYTES_IN_FLIGHT)
    assert window.reserve(1, lambda: None)


@pytest.mark.parametrize("steps", range(6))
async def test_a_caller_cancelled_while_the_client_closes_stays_cancelled(broker: Broker, steps: int):
    broker.on[BaseCommand.CONNECT] = silent
    client = scripted_client()
    connecting = asyncio.ensure_future(client.connect())
    await until(lambda: broker.asked[BaseCommand.CONNECT])
    closing = asyncio.ensure_future(client.close())
    for _ in range(steps):
        await asyncio.sleep(0)
    was_over = connecting.done()
    connecting.cancel()
    await closing
    with pytest.raises(asyncio.CancelledError if not was_over else ClusterError):
        await connecting


async def test_closing_while_dialing_leaves_no_connection_open(broker: Broker):
    broker.on[BaseCommand.CONNECT] = silent
    client = scripted_client()
    connecting = asyncio.ensure_future(client.connect())
    await until(lambda: broker.asked[BaseCommand.CONNECT])
    await client.close()
    await until(lambda: not broker.link.open)
    with pytest.raises(ClusterError, match="closed"):
        await connecting
