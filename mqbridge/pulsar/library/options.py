"""Words that the client's methods take, and their numbers in the protocol."""

from typing import Literal

from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb

Mode = Literal["exclusive", "failover", "shared", "key_shared"]
"""How the consumers of a subscription share a topic.

exclusive   one consumer only; others are refused
failover    one consumer per partition, in order; another takes over when it is gone
shared      messages go to all consumers in turn, without order
key_shared  as shared, but messages of a key go to one consumer, in order
"""

Access = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
"""Which producers a topic may have: any; one, or fail; one, wait until there is no other; one, take the topic from the others."""

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
