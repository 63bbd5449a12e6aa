"""The clients of the server: producers and consumers by group, as their heartbeats tell.

A client is a member of its groups from its first heartbeat until it leaves them, its connection ends, or it has sent no heartbeat
for EXPIRY_S. When the members of a consumer group change, or what one of them has subscribed to, all of them are told: they share
the queues among themselves.

What this rests on: a client has one connection, on which it sends its heartbeats and pulls, and leaves its groups. When that was
lost, it pulls at the new one before its next heartbeat, up to 30 s later: until then it is expected if

- its pulls carry a commit: only members' pulls do; or
- a member at the same address has lost its connection within RECONNECT_S, or its pulls name no filter, so that it is the one of
  its heartbeat; for HEARTBEAT_S at most, because clients that read by position may do the same.

After a restart of this gateway, nothing is known of members whose pulls name a filter and carry no commit: lite pull consumers,
and C++ push consumers that have committed nothing. They read by position until their heartbeats.

Ids are not unique: processes in containers may have the same address and number. So members are told apart by their
connections; the lists that clients divide queues by name each id once. Clients with one id read the same queues, as with brokers.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from mqbridge.rocketmq.server.connection import ServedConnection
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.wire.bodies.groups import (
    ACTIVELY,
    BROADCASTING,
    CLUSTERING,
    FROM_LAST,
    PASSIVELY,
    ConsumerData,
    Heartbeat,
    SubscriptionData,
)
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.groups import GroupHeader

log = logging.getLogger(__name__)

EXPIRY_S = 120.0
"""Time without a heartbeat after which a client is no member any more."""
SWEEP_S = 30.0
"""Time between two looks for clients that have sent no heartbeat."""
RECONNECT_S = 30.0
"""How long a member that has lost its connection is expected to come back."""
HEARTBEAT_S = 35.0
"""Time within which a client at a new connection sends a heartbeat: clients send one every 30 s."""
MAX_GONE = 20_000
"""Maximum number of lost members that are remembered."""
MAX_GROUPS = 20_000
"""Maximum number of consumer groups, and of producer groups, that have members."""
MAX_NAME_CHARS = 255
"""Maximum length of a group's name."""


MemberKey = tuple[str, ServedConnection]
"""The id of a client, and its connection."""


class GroupClient(NamedTuple):
    """A client in a consumer group, with what its last heartbeat has said of the group, and when that came (loop time)."""

    client_id: str
    link: ServedConnection
    data: ConsumerData
    seen_at: float

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """What it has subscribed to, by topic."""
        return {each.topic: each for each in self.data.subscriptions}

    @property
    def shares(self) -> bool:
        """True if it shares the messages with the other members, and False if it gets all of them, or assigns itself queues."""
        return self.data.message_model == CLUSTERING


class ConsumerGroup:
    """A consumer group and its members."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connected: dict[MemberKey, GroupClient] = {}
        """The members."""
        self.members: dict[str, GroupClient] = {}
        """The members by client id: of several with one id the one whose heartbeat came last."""
        self._at: dict[ServedConnection, list[GroupClient]] = {}
        """The members at each connection."""
        self._shared: dict[ServedConnection, frozenset[str]] = {}
        """The topics that the client at each connection shares with the other members."""

    def learn(self) -> None:
        """Take note of what the members say now; called after each change of `connected`."""
        self.members, self._at = {}, {}
        shared: dict[ServedConnection, frozenset[str]] = {}
        for member in self.connected.values():
            known = self.members.get(member.client_id)
            if known is None or member.seen_at >= known.seen_at:
                self.members[member.client_id] = member
            self._at.setdefault(member.link, []).append(member)
            if member.shares:
                topics = frozenset(each.topic for each in member.data.subscriptions)
                shared[member.link] = shared.get(member.link, frozenset()) | topics
        self._shared = shared

    def at(self, link: ServedConnection) -> Sequence[GroupClient]:
        """Return the members at a connection."""
        return self._at.get(link, ())

    @property
    def newest(self) -> GroupClient | None:
        """The member whose heartbeat came last, which speaks for the group as with brokers; None without members."""
        return max(self.members.values(), key=lambda member: member.seen_at, default=None)

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """What the members have subscribed to, by topic; of each topic what was subscribed last."""
        found: dict[str, SubscriptionData] = {}
        for member in self.connected.values():
            for topic, subscription in member.subscriptions.items():
                if topic not in found or subscription.version >= found[topic].version:
                    found[topic] = subscription
        return found

    @property
    def shared_topics(self) -> frozenset[str]:
        """The names of the topics that members share."""
        return frozenset(topic for member in self.connected.values() if member.shares for topic in member.subscriptions)

    @property
    def consume_from(self) -> str:
        """Where the group begins in topics that are new to it."""
        return FROM_LAST if self.newest is None else self.newest.data.consume_from

    @property
    def is_broadcast(self) -> bool:
        """True if its members get all messages each."""
        return self.newest is not None and self.newest.data.message_model == BROADCASTING

    def is_active(self, link: ServedConnection) -> bool:
        """Return True if the member at this connection chooses itself from where it pulls."""
        return any(member.data.consume_type == ACTIVELY for member in self.at(link))

    def is_passive(self, link: ServedConnection) -> bool:
        """Return True if the member at this connection gets messages pushed, by its own library."""
        return any(member.data.consume_type == PASSIVELY for member in self.at(link))

    def shares_any(self, link: ServedConnection) -> bool:
        """Return True if the client at this connection shares topics with the other members."""
        return bool(self._shared.get(link))

    def shares(self, link: ServedConnection, topic: str) -> bool:
        """Return True if the client at this connection shares the topic with the other members."""
        return topic in self._shared.get(link, ())


class Clients:
    """See the module."""

    def __init__(self, on_group: Callable[[ConsumerGroup], None], on_producer: Callable[[str, bool], None]) -> None:
        """`on_group` is called after a heartbeat of a member, and when members are gone.

        `on_producer` is called with a producer group that has its first member now (True), or none any more (False).
        """
        self.consumers: dict[str, ConsumerGroup] = {}
        """The consumer groups that have members."""
        self.producers: dict[str, dict[str, tuple[ServedConnection, float]]] = {}
        """The clients of each producer group by id, with their connections, and the loop time of their last heartbeat: of several
        with one id the one whose heartbeat came last."""
        self._producers: dict[str, dict[MemberKey, float]] = {}
        """All clients of each producer group, with the loop time of their last heartbeat."""
        self._groups_of: dict[ServedConnection, set[str]] = {}
        """The consumer groups of which the client at each connection is, or was, a member."""
        self._heard: set[ServedConnection] = set()
        """The connections at which a heartbeat has come: it names all groups of the client."""
        self._gone: dict[tuple[str, str], float] = {}
        """By group and address: until when a member that has lost its connection is expected back (loop time)."""
        self._expected: dict[ServedConnection, dict[str, float]] = {}
        """The groups for which the client at a connection is expected to send a heartbeat, and until when (loop time)."""
        self.on_not_expected: Callable[[str], None] = lambda _: None
        """Called with a group when a client is not expected to be its member any more; the owner sets this."""
        self.began_at = asyncio.get_running_loop().time()
        """Loop time at which the server began."""
        self._on_group, self._on_producer = on_group, on_producer
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def is_new(self) -> bool:
        """True while members may not have sent a heartbeat to this server since it began."""
        return asyncio.get_running_loop().time() < self.began_at + HEARTBEAT_S

    def start(self) -> None:
        """Begin to look for clients that send no heartbeats."""
        self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._remove_expired)

    def stop(self) -> None:
        """End that."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    # --- heartbeats -----------------------------------------------------------------------------------------------------

    def heartbeat(self, link: ServedConnection, heartbeat: Heartbeat) -> None:
        """Take note of a client's groups. Raises CodedRefusal for an invalid name, or if there are too many groups."""
        now = asyncio.get_running_loop().time()
        names = [*heartbeat.producers, *(each.group for each in heartbeat.consumers)]
        for name in names:
            if not 0 < len(name) <= MAX_NAME_CHARS:
                raise CodedRefusal(f"{name[:80]!r} cannot be the name of a group", Status.SYSTEM_ERROR)
        if len(self.consumers) + len(self.producers) + len(names) > MAX_GROUPS and not self._knows(names):
            raise CodedRefusal(f"there are {MAX_GROUPS} groups already", Status.SYSTEM_BUSY)
        for name in heartbeat.producers:
            self._add_producer(name, heartbeat.client_id, link, now)
        for data in heartbeat.consumers:
            self._add_member(GroupClient(heartbeat.client_id, link, data, now), keeps=heartbeat.without_subscriptions)
        self._heard.add(link)
        for name in self._expected.pop(link, ()):
            self.on_not_expected(name)

    def _knows(self, names: Iterable[str]) -> bool:
        return all(name in self.consumers or name in self.producers for name in names)

    def _add_producer(self, name: str, client_id: str, link: ServedConnection, now: float) -> None:
        is_new = name not in self._producers
        self._producers.setdefault(name, {})[client_id, link] = now
        self.producers.setdefault(name, {})[client_id] = link, now
        if is_new:
            self._on_producer(name, True)

    def _add_member(self, member: GroupClient, *, keeps: bool) -> None:
        """Add a member, or take its newest data; with `keeps`, it has not repeated its subscriptions."""
        group = self.consumers.get(member.data.group)
        if group is None:
            group = self.consumers[member.data.group] = ConsumerGroup(member.data.group)
        key = member.client_id, member.link
        before = group.connected.get(key)
        if before is not None and keeps and not member.data.subscriptions:
            member = member._replace(data=before.data)
        group.connected[key] = member
        group.learn()
        self._groups_of.setdefault(member.link, set()).add(group.name)
        if before is None or _topics(before) != _topics(member):
            self._tell_changed(group)
        self._on_group(group)

    def _tell_changed(self, group: ConsumerGroup) -> None:
        for link in {link for _, link in group.connected}:
            link.notify(Code.NOTIFY_CONSUMER_IDS_CHANGED, GroupHeader(group.name))

    # --- the end of clients ---------------------------------------------------------------------------------------------

    def unregister(
        self, client_id: str, producer_group: str | None, consumer_group: str | None, link: ServedConnection | None = None
    ) -> None:
        """Take note that a client has left groups: the one at this connection, or all with this id."""

        def has_left(key: MemberKey) -> bool:
            return key[0] == client_id and link in (None, key[1])

        if producer_group is not None:
            self._drop_producers(producer_group, [key for key in self._producers.get(producer_group, ()) if has_left(key)])
        if consumer_group is not None and (group := self.consumers.get(consumer_group)) is not None:
            self._drop_members(group, [key for key in group.connected if has_left(key)])

    def drop(self, link: ServedConnection) -> None:
        """Take note that a connection has ended."""
        self._groups_of.pop(link, None)
        self._expected.pop(link, None)
        self._heard.discard(link)
        for group in self.consumers.values():
            if group.shares_any(link):
                self._remember(group.name, _address(link))
        for name, producers in list(self._producers.items()):
            self._drop_producers(name, [key for key in producers if key[1] is link])
        for group in list(self.consumers.values()):
            self._drop_members(group, [key for key in group.connected if key[1] is link])

    def _remember(self, group: str, address: str) -> None:
        """Take note that a member has lost its connection."""
        self._gone.pop((group, address), None)
        self._gone[group, address] = asyncio.get_running_loop().time() + RECONNECT_S
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _remove_expired(self) -> None:
        now = asyncio.get_running_loop().time()
        oldest = now - EXPIRY_S
        for key in [key for key, until in self._gone.items() if until <= now]:
            del self._gone[key]
        for name, producers in list(self._producers.items()):
            self._drop_producers(name, [key for key, seen_at in producers.items() if seen_at < oldest])
        for group in list(self.consumers.values()):
            self._drop_members(group, [key for key, member in group.connected.items() if member.seen_at < oldest])
        self.start()

    def _drop_producers(self, name: str, keys: Collection[MemberKey]) -> None:
        if not keys:
            return
        members = self._producers[name]
        for key in keys:
            del members[key]
        if members:
            newest = sorted(members.items(), key=lambda item: item[1])
            self.producers[name] = {client_id: (link, seen_at) for (client_id, link), seen_at in newest}
        else:
            del self._producers[name], self.producers[name]
            self._on_producer(name, False)

    def _drop_members(self, group: ConsumerGroup, keys: Collection[MemberKey]) -> None:
        if not keys:
            return
        for key in keys:
            del group.connected[key]
        group.learn()
        if not group.connected:
            del self.consumers[group.name]
        self._tell_changed(group)
        self._on_group(group)

    # --- questions ------------------------------------------------------------------------------------------------------

    def was_member(self, link: ServedConnection, group: str) -> bool:
        """Return True if the client at this connection is, or was, a member of a group: its last commits may come late."""
        return group in self._groups_of.get(link, ())

    def expect(self, link: ServedConnection, group: str) -> None:
        """Take note that the client at this connection does what only members of a group do."""
        groups = self._groups_of.setdefault(link, set())
        if len(group) <= MAX_NAME_CHARS and len(groups) < MAX_GROUPS:
            groups.add(group)

    def expect_heartbeat(self, link: ServedConnection, group: str, *, has_filter: bool) -> None:
        """Take note that a client pulls for a group; called with its first pull of each queue.

        `has_filter` is False if the pull relies on the filter of a heartbeat.
        """
        if link in self._heard or group in self._expected.get(link, ()) or len(group) > MAX_NAME_CHARS:
            return
        if not has_filter or self.is_returning(link, group):
            self._expected.setdefault(link, {})[group] = asyncio.get_running_loop().time() + HEARTBEAT_S

    def is_returning(self, link: ServedConnection, group: str) -> bool:
        """Return True if the client at this connection may be a member that has lost another one."""
        if link in self._heard:
            return False
        until = max(self._gone.get((group, _address(link)), 0.0), self._expected.get(link, {}).get(group, 0.0))
        return asyncio.get_running_loop().time() < until

    def is_expected(self, link: ServedConnection, group: str) -> bool:
        """Return True if the client at this connection is, or was, a member of a group, but has not said so now."""
        return self.expected_until(link, group) > asyncio.get_running_loop().time()

    def expected_until(self, link: ServedConnection, group: str) -> float:
        """Return until when (loop time) a client is expected to be a member of a group; 0 if it is not, or is one."""
        known = self.consumers.get(group)
        if known is not None and known.at(link):
            return 0.0
        return inf if self.was_member(link, group) else self._expected.get(link, {}).get(group, 0.0)

    def producer_links(self, group: str) -> list[ServedConnection]:
        """Return the connections of a producer group that are alive."""
        return [link for _, link in self._producers.get(group, ()) if link.alive]

    def link_of(self, client_id: str) -> ServedConnection | None:
        """Return the connection of a client, one that is alive if there is one; None if it is not here."""
        links = [members[client_id][0] for members in self.producers.values() if client_id in members]
        links += [group.members[client_id].link for group in self.consumers.values() if client_id in group.members]
        if links and not any(link.alive for link in links):  # another client may have this id
            links += [link for keys in self._producers.values() for name, link in keys if name == client_id]
            links += [link for group in self.consumers.values() for name, link in group.connected if name == client_id]
        return next((link for link in links if link.alive), links[0] if links else None)

    def groups_of(self, topic: str) -> Iterator[str]:
        """Yield the names of the groups with members that have subscribed to a topic."""
        return (name for name, group in self.consumers.items() if topic in group.subscriptions)


def _address(link: ServedConnection) -> str:
    return link.peer.rpartition(":")[0]


def _topics(member: GroupClient) -> set[tuple[str, str, str]]:
    return {(each.topic, each.expression, each.expression_type) for each in member.data.subscriptions}
