"""Subscription modes and access modes: their names in the client's methods, and their numbers in the protocol."""

from typing import Literal

from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb

Mode = Literal["exclusive", "failover", "shared", "key_shared"]
"""How the consumers of a subscription share a topic.

exclusive   only one consumer may subscribe, and receives in order; the broker refuses others
failover    each partition has one active consumer, which receives in order; when it disconnects, another becomes active
shared      messages are distributed over all consumers, without order
key_shared  like shared, but all messages of a key are delivered to one consumer, in order
"""

Access = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
"""Which other producers a topic may have.

shared                  any number of producers
exclusive               no other; opening fails while there is one
wait_for_exclusive      no other; opening waits until there is none
exclusive_with_fencing  no other; opening makes the broker disconnect the existing ones
"""

SUBSCRIPTION_TYPES = {
    "exclusive": pb.CommandSubscribe.Exclusive,
    "failover": pb.CommandSubscribe.Failover,
    "shared": pb.CommandSubscribe.Shared,
    "key_shared": pb.CommandSubscribe.Key_Shared,
}
ACCESS_MODES = {
    "shared": pb.Shared,
    "exclusive": pb.Exclusive,
    "wait_for_exclusive": pb.WaitForExclusive,
    "exclusive_with_fencing": pb.ExclusiveWithFencing,
}
