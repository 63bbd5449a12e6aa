"""Producers, as the Master knows them: each has an id, and asks for the partitions of its topics again and again.

A producer that is not known, because the gateway was restarted or its name leads here now, is accepted at its heartbeat, which
names its topics: nothing has to be told again.
"""

import asyncio
from collections.abc import Sized
from typing import NamedTuple

from mqbridge.listener.topics import ListenedTopic
from mqbridge.tubemq.server.broker import BROKER_ID, MIN_MESSAGE_BYTES, ServedBroker
from mqbridge.tubemq.server.connection import Served, ServedConnection, success
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.pb import master_pb2 as pb
from mqbridge.tubemq.wire.rpc import Request, parse
from mqbridge.tubemq.wire.string_formats import TopicInfo, format_topic_info

LEASE_S = 45.0
"""Time without a heartbeat after which a producer is forgotten."""
SWEEP_S = 15.0
"""Time between two looks for those."""
MAX_PRODUCERS = 20_000
"""Maximum number of producers that are remembered; the oldest one is forgotten."""
MAX_TOPICS = 1024
"""Maximum number of topics of a client."""
MAX_ID_CHARS = 1024
"""Maximum length of the id of a client, and of the name of a group."""
NO_CONFIG = -2
"""Id of a configuration that a client does not have."""


class Producer(NamedTuple):
    """A producer: its last connection, the number of its topics, and the loop time until which it counts as alive."""

    link: ServedConnection
    topics: int
    until: float


class Producers:
    """Serves the requests of producers to the Master."""

    def __init__(self, broker: ServedBroker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.known: dict[str, Producer] = {}
        """Producers by their ids."""
        self._sweep: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look for producers that are gone."""
        self._sweep = self._loop.call_later(SWEEP_S, self._forget_gone)

    def stop(self) -> None:
        """End that."""
        if self._sweep is not None:
            self._sweep.cancel()

    def _forget_gone(self) -> None:
        now = self._loop.time()
        for client_id in [client_id for client_id, producer in self.known.items() if producer.until < now]:
            del self.known[client_id]
        self.start()

    def drop(self, link: ServedConnection) -> None:
        """Forget the producers whose connection has ended; they are known again when they come back."""
        for client_id in [client_id for client_id, producer in self.known.items() if producer.link is link]:
            del self.known[client_id]

    def _note(self, link: ServedConnection, client_id: str, topics: int) -> None:
        self.known.pop(client_id, None)
        if len(self.known) >= MAX_PRODUCERS:
            del self.known[next(iter(self.known))]
        self.known[client_id] = Producer(link, topics, self._loop.time() + LEASE_S)

    # --- requests ---------------------------------------------------------------------------------------------------------

    def register(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve PRODUCER_REGISTER."""
        asked = parse(pb.RegisterRequestP2M, request.body)
        check_client(asked.clientId, asked.topicList)
        self._note(link, asked.clientId, len(asked.topicList))
        return success(
            rpc.PRODUCER_REGISTER,
            brokerCheckSum=self._broker.checksum(link.address),
            brokerInfos=[str(self._broker.address(link.address))],
            appdConfig=self._config(asked.appdConfig) if asked.HasField("appdConfig") else None,
        )

    def heartbeat(self, link: ServedConnection, _: int, request: Request) -> Served:
        """Serve PRODUCER_HEARTBEAT."""
        asked = parse(pb.HeartRequestP2M, request.body)
        check_client(asked.clientId, asked.topicList)
        self._note(link, asked.clientId, len(asked.topicList))
        return self._answer_heartbeat(link, asked)

    async def _answer_heartbeat(self, link: ServedConnection, asked: pb.HeartRequestP2M) -> bytes:
        topics = await self._broker.used_topics(asked.topicList)
        checksum = self._broker.checksum(link.address)
        return success(
            rpc.PRODUCER_HEARTBEAT,
            brokerCheckSum=checksum,
            brokerInfos=[] if asked.brokerCheckSum == checksum else [str(self._broker.address(link.address))],
            topicInfos=[self._topic_info(name, topic) for name, topic in topics.items() if topic.count],
            requireAuth=False,
            appdConfig=self._config(asked.appdConfig) if asked.HasField("appdConfig") else None,
        )

    def _topic_info(self, name: str, topic: ListenedTopic) -> str:
        """Return a topic with one store: some clients ignore others."""
        return format_topic_info(TopicInfo(name, ((BROKER_ID, topic.count, 1),), self._broker.max_message_bytes))

    def _config(self, has: pb.ApprovedClientConfig) -> pb.ApprovedClientConfig:
        """Return the configuration for a client that has this one: its id, and the limit of messages if that is new."""
        limit = max(MIN_MESSAGE_BYTES, self._broker.max_message_bytes)
        config = pb.ApprovedClientConfig(configId=limit)  # the id changes with the limit
        if has.configId != limit:
            config.maxMsgSize = limit
        return config

    def close(self, _: ServedConnection, __: int, request: Request) -> Served:
        """Serve PRODUCER_CLOSE."""
        self.known.pop(parse(pb.CloseRequestP2M, request.body).clientId, None)
        return success(rpc.PRODUCER_CLOSE)


def check_client(client_id: str, topics: Sized = ()) -> None:
    """Raise CodedRefusal for too many topics, and for an id that is blank, too long, or has separators of subscriptions."""
    if not client_id.strip() or len(client_id) > MAX_ID_CHARS or set("#@") & set(client_id):
        raise CodedRefusal(f"{client_id[:100]!r} is not the id of a client", codes.BAD_REQUEST)
    if len(topics) > MAX_TOPICS:
        raise CodedRefusal(f"a client may have {MAX_TOPICS} topics", codes.BAD_REQUEST)


def check_group(group: str) -> None:
    """Raise CodedRefusal for the name of a group that is blank or too long."""
    if not group.strip() or len(group) > MAX_ID_CHARS:
        raise CodedRefusal(f"{group[:100]!r} is not the name of a group", codes.BAD_REQUEST)
