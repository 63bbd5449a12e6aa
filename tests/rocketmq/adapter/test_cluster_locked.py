"""Clusters with TLS and access control, without sockets: settings, URLs, and the checks before a route is opened."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.adapter.cluster import RocketMQ
from mqbridge.rocketmq.adapter.config import RocketMQCluster
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, GroupConfigs
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.send import SendHeader
from tests.rocketmq.client import broker
from tests.rocketmq.client.broker import A, Answer, B, Link, cluster, refuses, responds_with, success

__all__ = ["cluster"]

AUTH = {"access_key": "app", "secret_key": "secret-of-app"}
ILLEGAL = refuses(Status.INVALID_PARAMETER, "request queueId[2147483647] is illegal")


# --- settings -------------------------------------------------------------------------------------------------------------


def test_the_ssl_scheme_switches_tls_on() -> None:
    plain = RocketMQCluster.from_url("rocketmq://ns:1")
    encrypted = RocketMQCluster.from_url("rocketmq+ssl://ns:1")
    assert (plain.tls, plain.auth) == (None, None)
    assert encrypted.tls is not None
    assert encrypted == RocketMQCluster.from_url("rocketmq://ns:1?tls=true")
    assert encrypted.name_servers == ("ns:1",)


def test_a_url_names_options_and_files(tmp_path: Path) -> None:
    found = RocketMQCluster.from_url(
        f"rocketmq+ssl://a:1,b:2?tls.authorities={tmp_path}&tls.server_name=mq&auth.access_key=app&auth.secret_key.file=/key"
    )
    assert found.tls is not None
    assert (found.tls.authorities, found.tls.server_name) == (tmp_path, "mq")
    assert found.auth is not None
    assert found.auth.secret_key.source == "file /key"
    assert found.name_servers == ("a:1", "b:2")


@pytest.mark.parametrize("url", ["rocketmq+ssl://ns?tls=false", "rocketmq+tls://ns", "rocketmqs://ns"])
def test_contradictory_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="rocketmq\\+ssl://"):
        RocketMQCluster.from_url(url)


@pytest.mark.parametrize("auth", [{"access_key": "a"}, {"secret_key": "b"}, {**AUTH, "token": "c"}, {**AUTH, "secret_key": ""}])
def test_incomplete_or_unknown_credentials_are_refused(auth: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="auth"):
        RocketMQCluster(name_servers="ns", auth=auth)


def test_no_secret_is_shown() -> None:
    config = RocketMQCluster(name_servers="ns", auth={**AUTH, "security_token": "the-token"})
    for shown in (repr(config), str(config.model_dump()), config.model_dump_json()):
        assert "secret-of-app" not in shown
        assert "the-token" not in shown


# --- checks before a route is opened --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def permit_everything(cluster: broker.Cluster) -> None:
    """Make the brokers grant every permission, and create groups automatically."""
    cluster.on[Code.GET_BROKER_CONFIG] = responds_with(b"autoCreateSubscriptionGroup=true\n")
    cluster.on[Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = responds_with(GroupConfigs({"G": GroupConfig("G")}).encode())
    cluster.on[Code.SEND_MESSAGE_V2] = ILLEGAL
    cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP] = refuses(Status.SYSTEM_ERROR, "no consumer for this group, G")
    cluster.on[Code.QUERY_MESSAGE] = refuses(Status.QUERY_NOT_FOUND, "can not find message")
    for code in (Code.UNLOCK_BATCH_MQ, Code.GET_MAX_OFFSET):
        cluster.on[code] = success


@asynccontextmanager
async def connected_cluster(**settings: Any) -> AsyncIterator[RocketMQ]:
    made = ADAPTER.make_cluster("c", ADAPTER.cluster_model(name_servers="ns", **settings))
    assert isinstance(made, RocketMQ)
    await made.connect()
    try:
        yield made
    finally:
        await made.close()


async def test_the_permission_to_produce_is_checked_at_every_master(cluster: broker.Cluster) -> None:
    async with connected_cluster(auth=AUTH) as rocket:
        await rocket.check_outbound(OutboundSpec("T"))
    sent = cluster.requests[Code.SEND_MESSAGE_V2]
    assert [SendHeader.decode(request.ext).queue_id for request in sent] == [0x7FFFFFFF] * 2, "no topic has this queue"
    assert all(SendHeader.decode(request.ext).default_topic == "T" for request in sent), "nor does the broker create the topic"
    assert {request.ext["AccessKey"] for request in sent} == {"app"}


async def test_without_credentials_no_permission_is_checked(cluster: broker.Cluster) -> None:
    async with connected_cluster() as rocket:
        await rocket.check_outbound(OutboundSpec("T"))
        await rocket.check_inbound(InboundSpec(("T",), "G"))
    assert not cluster.requests[Code.SEND_MESSAGE_V2]
    assert not cluster.requests[Code.UNLOCK_BATCH_MQ]
    assert not cluster.requests[Code.HEART_BEAT]


async def test_the_permission_to_consume_is_checked_for_the_group(cluster: broker.Cluster) -> None:
    async with connected_cluster(auth=AUTH) as rocket:
        await rocket.check_inbound(InboundSpec(("T",), "G"))
    asked = (Code.UNLOCK_BATCH_MQ, Code.GET_CONSUMER_LIST_BY_GROUP, Code.QUERY_MESSAGE, Code.GET_MAX_OFFSET)
    assert all(len(cluster.requests[code]) == 2 for code in asked)
    assert cluster.requests[Code.GET_CONSUMER_LIST_BY_GROUP][0].ext["consumerGroup"] == "G"


async def test_an_outbound_with_a_sender_needs_the_permission_to_consume(cluster: broker.Cluster) -> None:
    async with connected_cluster(auth=AUTH) as rocket:
        await rocket.check_outbound(OutboundSpec("T", sender="one"))
    assert cluster.requests[Code.GET_CONSUMER_LIST_BY_GROUP][0].ext["consumerGroup"] == "TOOLS_CONSUMER"


@pytest.mark.parametrize(
    ("code", "resource", "words"),
    [
        (Code.UNLOCK_BATCH_MQ, "Group:G", "may not consume as group 'G'"),
        (Code.UNLOCK_BATCH_MQ, "Topic:T", "may not consume topic 'T'"),
        (Code.GET_MAX_OFFSET, "Topic:T", "may not query topic 'T'"),
    ],
)
async def test_a_permission_that_one_broker_denies_is_fatal(
    cluster: broker.Cluster, code: int, resource: str, words: str
) -> None:
    remark = f"User:app has no permission to access {resource} from 10.0.0.1, no matched policies."
    cluster.at[B, code] = refuses(Status.NO_PERMISSION, remark)
    async with connected_cluster(auth=AUTH) as rocket:
        with pytest.raises(ClusterError, match=words) as caught:
            await rocket.check_inbound(InboundSpec(("T",), "G"))
    assert caught.value.failure is Failure.FATAL
    assert B in str(caught.value)


def refuse_signature(link: Link, request: broker.Command) -> None:
    link.answer(request, Status.NO_PERMISSION, remark="check signature failed.")


@pytest.mark.parametrize(("answer", "failure"), [(refuse_signature, Failure.FATAL), (refuses(2, "busy"), None)])
async def test_refused_credentials_fail_the_connection(cluster: broker.Cluster, answer: Answer, failure: Failure | None) -> None:
    cluster.at[A, Code.HEART_BEAT] = answer
    if failure is None:
        async with connected_cluster(auth=AUTH):
            return
    with pytest.raises(ClusterError, match="a:10911 refuses access key 'app'") as caught:
        async with connected_cluster(auth=AUTH):
            pass
    assert caught.value.failure is failure


async def test_connecting_ignores_an_unreachable_broker(cluster: broker.Cluster) -> None:
    cluster.unreachable.add(A)
    async with connected_cluster(auth=AUTH) as rocket:
        assert await rocket.describe("T") is not None
