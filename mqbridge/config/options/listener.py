"""Options of listeners: servers for the unmodified clients of a system.

Defaults that depend on the system, the cluster or the name are null here; `mqbridge.gateway.listener_settings` fills them in.
"""

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidatorFunctionWrapHandler, WrapValidator

from mqbridge.config.base import Name, Options, checked_by, option_error
from mqbridge.config.options.delivery import MIN_IN_FLIGHT_BYTES
from mqbridge.config.units import Address, Size, split_listen_address
from mqbridge.errors import ConfigError

_WORD = re.compile(r"\{[^{}]*\}")
"""Matches a word of a template of names."""


def _check_template(template: str, required: str, optional: frozenset[str] = frozenset()) -> None:
    """Raise ConfigError unless the template has the word `required` once, and besides it only words of `optional`."""
    words = _WORD.findall(template)
    if words.count(required) != 1:
        raise ConfigError(f"the template {template!r} does not contain {required} exactly once", hint=f"Write {required} once")
    for word in words:
        if word != required and word not in optional:
            known = " and ".join(sorted({required, *optional}))
            raise ConfigError(f"the template uses {word}, which is not defined here", hint=f"It may use {known}")


def _check_topics(template: str) -> None:
    _check_template(template, "{topic}")


def _check_group(template: str) -> None:
    _check_template(template, "{group}", frozenset({"{topic}"}))


def _check_advertised(address: str) -> None:
    if split_listen_address(address)[1] == 0:
        raise ConfigError(f"clients cannot connect to port 0, as in {address!r}", hint="Write the port that they can reach")


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the host: `localhost`, and loopback addresses."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ListenerCreate(Options):
    """How topics are created that clients use and that do not exist."""

    partitions: int = Field(
        default=4, ge=1, le=100_000, description="Number of partitions of topics that clients create by using them."
    )


def _validate_create(value: Any, handler: ValidatorFunctionWrapHandler) -> Literal[False] | ListenerCreate:
    """Validate a mapping as ListenerCreate, and accept nothing else but false: so errors mention only one of the two forms."""
    if isinstance(value, Mapping):
        return ListenerCreate.model_validate(value)
    if value is not False and not isinstance(value, ListenerCreate):
        raise option_error("create", f"must be false or a mapping, not {value!r}", "Write create: {partitions: N}, or false")
    created: Literal[False] | ListenerCreate = handler(value)
    return created


class ListenerDeadLetter(Options):
    """The topic for messages that clients have sent and that the cluster rejects."""

    cluster: Name | None = Field(default=None, description="The cluster of the topic; null means the cluster of the listener.")
    topic: Name | None = Field(default=None, description="The topic; null means `mqbridge-dead-NAME`, with the listener's name.")


def _refuse_spool(value: Any) -> None:
    """Raise the error for anything but null."""
    if value is not None:
        raise option_error(
            "spool", "a spool is not supported yet", "Leave it out: a send is answered when the cluster has stored its messages"
        )


class ListenerSends(Options):
    """What happens to the messages that clients send."""

    deduplicate: bool = Field(
        default=False,
        description="Store a message once, although its producer sends it again: for producers that clients have named and that "
        "number their messages, which those of RocketMQ and TubeMQ do not.",
    )
    dead_letter: ListenerDeadLetter = Field(
        default=ListenerDeadLetter(),
        description="The topic for messages that the cluster rejects after others of the same send were stored. It is created "
        "when it is needed.",
    )
    spool: Annotated[None, BeforeValidator(_refuse_spool)] = Field(
        default=None, description="Reserved for sends while the cluster is unreachable; must be null."
    )


class ListenerLimits(Options):
    """Limits of a listener."""

    connections: int = Field(default=1000, ge=1, description="Maximum number of connections; more are refused.")
    in_flight_bytes: Size = Field(
        default=64 << 20,
        ge=MIN_IN_FLIGHT_BYTES,
        description="Maximum bytes that clients have sent and that are not stored. Beyond it, nothing more is read from clients.",
    )
    unacknowledged_bytes: Size = Field(
        default=32 << 20,
        ge=MIN_IN_FLIGHT_BYTES,
        description="Maximum bytes that are read for consumers and not acknowledged. A group gets a quarter of it in a "
        "partition, or half while all together hold less than half.",
    )
    unacknowledged_span: int = Field(
        default=10_000,
        ge=1,
        description="Maximum number of messages from the oldest unacknowledged one to the newest delivered one, in a partition "
        "of a group. Beyond it, the group gets nothing more there: this bounds what comes again when the partition moves to "
        "another gateway.",
    )


class ListenerConfig(Options):
    """A listener: a server for unmodified clients of a system, whose messages are stored in any cluster."""

    name: Name = Field(description="The listener's name in metrics, logs and the state file; it must be unique.")
    system: Name = Field(description="The system whose clients are served: `pulsar`, `rocketmq` or `tubemq`.")
    listen: Address | None = Field(
        default=None,
        description="Address to listen at, HOST:PORT. Null means 127.0.0.1 and the system's own port: 6650 for `pulsar`, 9876 "
        "for `rocketmq`, 8715 for `tubemq` (Master and Broker). Port 0 selects a free port.",
    )
    web: Address | None = Field(
        default=None,
        description="Address of the system's HTTP interface, HOST:PORT: for `pulsar` the lookup and a part of the admin API, "
        "for `tubemq` the web methods that scripts use. Null means that it is not served.",
    )
    advertise: Annotated[Address, checked_by(_check_advertised)] | None = Field(
        default=None,
        description="Address that clients are told to connect to, HOST:PORT. Null means the address that they have connected to.",
    )
    cluster: Name = Field(description="The cluster that stores the messages.")
    topics: Annotated[Name, checked_by(_check_topics)] | None = Field(
        default=None,
        description="How clients name the cluster's topics: a template in which `{topic}` is the topic's name in the cluster. A "
        "topic whose name does not match does not exist. Null means the default of the system.",
        examples=["persistent://public/default/{topic}"],
    )
    groups: Literal["backing", "own"] = Field(
        default="backing",
        description="`backing`: the groups of clients (on Pulsar the subscriptions) are groups of the cluster, so several "
        "gateways share them. `own`: this gateway keeps them itself, in the file `STATE.groups` beside `state`, which is then "
        "required. It must be the only gateway that serves them.",
    )
    group: Annotated[Name, checked_by(_check_group)] | None = Field(
        default=None,
        description="How groups of clients are named in the cluster, with `groups: backing`: a template in which `{group}` is "
        "the client's group and `{topic}` the topic's name in the cluster. Null means `{group}`; for Pulsar clients "
        "`{group}-{topic}` if all members of a group must read the same topics in the cluster's system (RocketMQ, TubeMQ). "
        "Groups of RocketMQ and TubeMQ clients read several topics, so `{topic}` cannot be used for them.",
        examples=["{group}", "{group}-{topic}"],
    )
    parking: Name | None = Field(
        default=None,
        description="The beginning of the names of topics in which messages wait for their time. Gateways of the same "
        "application share it. Null means `mqbridge-NAME`, with the listener's name. Those of TubeMQ clients never wait.",
    )
    create: Annotated[Literal[False] | ListenerCreate, WrapValidator(_validate_create)] = Field(
        default=ListenerCreate(),
        description="Create the topics that clients use and that do not exist, with `{partitions: N}`. `false`: they must exist.",
    )
    manage: bool = Field(
        default=False,
        description="Permit clients and tools to delete topics and groups, to reset groups, to skip messages, and to change "
        "topics.",
    )
    open: bool = Field(
        default=False,
        description="Permit addresses that other machines can reach. Listeners do not authenticate their clients: whoever "
        "reaches the port may read and write all topics of the listener.",
    )
    sends: ListenerSends = Field(default=ListenerSends(), description="What happens to the messages that clients send.")
    limits: ListenerLimits = Field(default=ListenerLimits(), description="Limits of the listener.")

    @property
    def clusters(self) -> frozenset[str]:
        """Names of all clusters that the listener uses."""
        return frozenset({self.cluster, self.dead_letter_cluster})

    @property
    def dead_letter_cluster(self) -> str:
        """Name of the cluster of the dead-letter topic."""
        return self.sends.dead_letter.cluster or self.cluster
