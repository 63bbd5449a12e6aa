"""The configuration of a RocketMQ cluster, and the options of its inbounds and outbounds."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.addresses import ADDRESSES_DESCRIPTION, Addresses
from mqbridge.config.base import Options
from mqbridge.config.tls import TlsChoice
from mqbridge.config.units import Duration, Size
from mqbridge.config.urls import join_addresses, server_identities, split_names, split_url
from mqbridge.net.addresses import AddressMap, split_address
from mqbridge.net.secret import IS_SHOWN, Secret
from mqbridge.rocketmq.client.admin.name_rules import check_topic
from mqbridge.rocketmq.client.connection.credentials import Credentials
from mqbridge.rocketmq.client.connection.name_server_address import DEFAULT_PORT
from mqbridge.rocketmq.mapping.compressed_body import Compression
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES

SCHEME, TLS_SCHEME = "rocketmq", "rocketmq+ssl"
"""Schemes of cluster URLs, without and with TLS."""
BATCH_BYTES = 1 << 20
"""Default of `batch_bytes`. Larger batches are not faster; Brokers accept up to 4 MiB by default."""


class RocketMQAuth(Options):
    """Credentials that sign every request: those of an account (access control 1.0, 4.x) or of a user (2.0, from 5.3 on)."""

    access_key: Secret = Field(
        description="The access key of an account, or the name of a user; logs may show it.", json_schema_extra={IS_SHOWN: True}
    )
    secret_key: Secret = Field(description="The secret key of the account, or the password of the user; it is never sent.")
    security_token: Secret | None = Field(
        default=None, description="The security token that a token service issues together with temporary keys."
    )

    def make(self) -> Credentials:
        """Return the client's credentials. Secrets that come from files are read when a request is signed."""
        return Credentials(self.access_key, self.secret_key, self.security_token)


class RocketMQCluster(ClusterModel):
    """Configuration of one cluster, which is found through its name servers."""

    name_servers: tuple[str, ...] = Field(
        min_length=1,
        description="The name servers, host:port, as a list or one text with commas or semicolons; port 9876 may be left out.",
        examples=["10.0.0.1:9876,10.0.0.2:9876"],
    )
    brokers: tuple[str, ...] = Field(
        default=(),
        description="The names of all Brokers, as a list or one text with commas. Name servers do not list a Broker that is "
        "down; with this list the gateway notices that one is missing. Without it, it knows the Brokers in `state`.",
        examples=["broker-a,broker-b"],
    )
    addresses: Addresses = Field(default_factory=AddressMap, description=ADDRESSES_DESCRIPTION)
    tls: TlsChoice = Field(
        default=None,
        description="`true`, or the options of TLS. Name servers and Brokers must all accept it; their ports stay the same.",
    )
    auth: RocketMQAuth | None = Field(
        default=None,
        description="Credentials where Brokers have access control switched on; files are read again while the gateway runs.",
    )
    request_timeout: Duration = Field(default=5.0, ge=0.5, le=600.0, description="How long to wait for a response.")
    heartbeat: Duration = Field(
        default=30.0, ge=0.5, le=60.0, description="Time between heartbeats; a Broker removes a client after 120 s without one."
    )
    refresh: Duration = Field(
        default=30.0, ge=0.1, description="Time between route queries: how soon new queues and moved Brokers are noticed."
    )
    max_message_size: Size = Field(
        default=MAX_MESSAGE_BYTES,
        ge=1024,
        description="The Brokers' `maxMessageSize`; larger messages are refused before sending. Batches keep within"
        " the limit that the Brokers report; a batch that a Broker refuses is sent in parts, so only"
        " a message that is refused alone is refused.",
    )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Parse a URL: `rocketmq://host:9876[,host:9876][?NAME=VALUE]`, or `rocketmq+ssl://` with TLS. Raises ValueError."""
        servers, settings = split_url(url, cls, excluded={"name_servers"})
        scheme, _, servers = servers.partition("://")
        if scheme == TLS_SCHEME:
            if settings.get("tls") == "false":
                raise ValueError(
                    f"{TLS_SCHEME}:// requires TLS, but tls=false switches it off: write {SCHEME}://, or leave out tls"
                )
            settings.setdefault("tls", True)
        elif scheme != SCHEME:
            raise ValueError(f"the URL of a RocketMQ cluster is {SCHEME}://HOST:PORT, or {TLS_SCHEME}://HOST:PORT with TLS")
        return cls.model_validate(settings | {"name_servers": servers.rstrip("/")})

    @property
    def identity(self) -> str:
        """The name servers' addresses: brokers and name servers know a cluster name, but most clusters keep the default one."""
        return join_addresses(SCHEME, self._addresses)

    @property
    def server_identities(self) -> frozenset[str]:
        """The address of each name server."""
        return server_identities(SCHEME, self._addresses)

    def check_topic_name(self, topic: str) -> None:
        """Raise ClusterError if clients may create no topic of this name."""
        check_topic(topic)

    @property
    def _addresses(self) -> list[tuple[str, int]]:
        return [split_address(address, DEFAULT_PORT) for address in self.name_servers]

    @field_validator("name_servers", mode="before")
    @classmethod
    def _split_name_servers(cls, value: Any) -> Any:
        return [part.strip() for part in value.replace(";", ",").split(",")] if isinstance(value, str) else value

    @field_validator("brokers", mode="before")
    @classmethod
    def _split_brokers(cls, value: Any) -> Any:
        return split_names(value)

    @field_validator("name_servers")
    @classmethod
    def _add_default_port(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("{}:{}".format(*split_address(address, DEFAULT_PORT)) for address in value)


class RocketMQInboundOptions(BaseModel):
    """Options of a route that consumes from RocketMQ."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sql: str | None = Field(
        default=None,
        min_length=1,
        description="An SQL92 expression on message properties; Brokers need `enablePropertyFilter`. Not with `msg_types`.",
        examples=["region = 'eu' AND amount > 100"],
    )
    strategy: Literal["averagely", "circle", "consistent_hash"] = Field(
        default="averagely",
        description="How the members of a group divide the queues; all members, Java ones too, must use the same.",
    )
    orderly: bool = Field(
        default=False,
        description="Lock queues at the Broker as orderly Java consumers do. Each queue is read in order in any case; the lock"
        " stops another member from reading it at the same time during a rebalance.",
    )
    retries: bool = Field(
        default=True,
        description="Also consume messages that members of the group sent back (`%RETRY%GROUP`), as every push consumer does.",
    )
    pull_messages: int = Field(
        default=1024,
        ge=1,
        le=65536,
        description="Maximum number of messages requested per pull. Brokers return at most 32 unless"
        " maxTransferCountOnMessageInMemory and -InDisk, and the corresponding byte limits, are raised.",
    )


class RocketMQOutboundOptions(BaseModel):
    """Options of a route that produces to RocketMQ."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    producer_group: str = Field(
        default="mqbridge",
        min_length=1,
        max_length=120,
        description="The producer group under which the gateway registers at the Brokers.",
    )
    batch_messages: int = Field(default=2000, ge=1, le=100_000, description="Maximum number of messages per send.")
    batch_bytes: Size = Field(
        default=BATCH_BYTES, ge=1, le=4 << 20, description="Maximum bytes per send; a larger message is sent alone."
    )
    compression: Compression = Field(
        default="none",
        description="Compression of bodies of 4 KiB or more that it makes smaller. Such messages are sent one by one, not in"
        " batches, so a queue stores fewer of them per second. A message above `max_message_size` is sent if it is small enough"
        " when compressed. Consumers before 4.9.4 read only `zlib`.",
    )
    require_replica: bool = Field(
        default=False,
        description="Hold back messages that a Broker stores without the flush or the replica that its settings demand "
        "(SYNC_MASTER, SYNC_FLUSH): they are sent again, with pauses of up to 5 s, until the Broker confirms both."
        " Each attempt is stored, so consumers see duplicates. `false` counts them as stored, with a WARNING and "
        "`mqbridge_unreplicated_messages_total`.",
    )
    in_flight: int = Field(
        default=4, ge=1, le=64, description="Maximum number of concurrent sends to one queue; 1 on routes that keep the order."
    )
