"""The configuration of a TubeMQ cluster."""

from typing import Annotated, Any, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.addresses import ADDRESSES_DESCRIPTION, Addresses
from mqbridge.config.base import Options
from mqbridge.config.proxy import PROXY_DESCRIPTION, AdminProxy
from mqbridge.config.tls import TlsChoice
from mqbridge.config.units import Duration
from mqbridge.config.urls import ADMIN_SHORT_NAME, join_addresses, server_identities, split_names, split_url
from mqbridge.net.addresses import AddressMap, split_address
from mqbridge.net.secret import Secret
from mqbridge.tubemq.adapter.names import check_topic_name
from mqbridge.tubemq.client.connection.credentials import Credentials
from mqbridge.tubemq.wire.string_formats import DEFAULT_MASTER_PORT, DEFAULT_MASTER_TLS_PORT

URL_HEARTBEAT = "2s"
"""Default heartbeat interval of a cluster that is given as a URL: on the command line a person waits for the result."""

PLAIN_SCHEME, TLS_SCHEME = "tubemq://", "tubemq+ssl://"


BrokerId = Annotated[str, Field(pattern=r"^\d+$")]
"""The id of a Broker, as a text, as in the names of partitions."""


class TubeMQAuth(Options):
    """The gateway's user on a cluster that authenticates clients."""

    user: str = Field(pattern=r"^\S+$", description="The user's name, without blanks.")
    password: Secret = Field(description="The user's password; it is read again for every request to a Master.")


class TubeMQCluster(ClusterModel):
    """Options of one cluster: its Masters and, optionally, the Master's web address."""

    masters: tuple[str, ...] = Field(
        min_length=1,
        description="The Masters, host:port, as a list or one text with commas; the default port is 8715, with `tls` 8716.",
        examples=["10.0.0.1:8715,10.0.0.2:8715"],
    )
    brokers: tuple[BrokerId, ...] = Field(
        default=(),
        description="The ids of all Brokers, as a list or one text with commas. Masters do not list the partitions of a Broker "
        "that is down; with this list the gateway notices that one is missing. Without it, it knows the Brokers in `state`.",
        examples=["1,2"],
    )
    admin_url: str | None = Field(
        default=None,
        description="The Master's web address. With it the gateway can list and create topics, list groups and query offsets."
        " `https` is for a proxy in front of the Master, which has no TLS for this address; the options of `tls` apply.",
        examples=["http://10.0.0.1:8080"],
    )
    admin_proxy: AdminProxy = Field(default=None, repr=False, description=PROXY_DESCRIPTION)
    admin_token: Secret | None = Field(default=None, description="The Master's confModAuthToken, needed only to create topics.")
    addresses: Addresses = Field(default_factory=AddressMap, description=ADDRESSES_DESCRIPTION)
    tls: TlsChoice = Field(
        default=None,
        description="`true`, or options: the gateway connects to Masters and Brokers with TLS, at their TLS ports. Servers of"
        " version 2.4 always require a client certificate.",
    )
    auth: TubeMQAuth | None = Field(
        default=None, description="For Masters with startProduceAuthenticate or startConsumeAuthenticate."
    )
    time_zone: str = Field(default="UTC", description="The time zone of `$msgTime$` in messages.", examples=["Asia/Shanghai"])
    heartbeat: Duration = Field(
        default=13.0,
        gt=0,
        le=15.0,
        description="Time between heartbeats. Masters assign partitions in their responses, so this decides how fast a group "
        "reacts to changes; a Master removes a consumer after 30 s without a heartbeat.",
    )
    request_timeout: Duration = Field(
        default=10.0,
        ge=1.0,
        le=600.0,
        description="How long a server may be silent before requests without a response fail. A server is silent while no bytes "
        "arrive from it, and it accepts none of the bytes that wait to be sent. A server drops requests that waited longer than "
        "this time.",
    )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Parse `tubemq[+ssl]://host:port[,host:port][?admin=http://host:8080&tls.authorities=FILE&…]`.

        The default heartbeat is shorter than in a configuration file: see URL_HEARTBEAT. Raises ValueError.
        """
        masters, settings = split_url(url, cls, excluded={"masters"}, short_names=ADMIN_SHORT_NAME)
        scheme = TLS_SCHEME if masters.startswith(TLS_SCHEME) else PLAIN_SCHEME
        if scheme == TLS_SCHEME:
            if settings.get("tls") == "false":
                raise ValueError("tubemq+ssl:// and tls=false exclude each other")
            settings.setdefault("tls", {})
        addresses = masters.removeprefix(scheme).rstrip("/")
        return cls.model_validate({"heartbeat": URL_HEARTBEAT} | settings | {"masters": addresses})

    @property
    def master_addresses(self) -> list[tuple[str, int]]:
        """Host and port of each Master."""
        port = DEFAULT_MASTER_PORT if self.tls is None else DEFAULT_MASTER_TLS_PORT
        return [split_address(address, port) for address in self.masters]

    @property
    def identity(self) -> str:
        """The Masters' addresses."""
        return join_addresses("tubemq", self.master_addresses)

    @property
    def server_identities(self) -> frozenset[str]:
        """The address of each Master."""
        return server_identities("tubemq", self.master_addresses)

    def check_topic_name(self, topic: str) -> None:
        """Raise ConfigError if Masters accept no topic of this name."""
        check_topic_name(topic)

    @property
    def credentials(self) -> Credentials:
        """A new object: it records the roles in which Masters accepted it, so one cluster client keeps one object."""
        return Credentials() if self.auth is None else Credentials(self.auth.user, self.auth.password)

    @field_validator("admin_url", mode="before")
    @classmethod
    def _no_empty_text(cls, value: Any) -> Any:
        """Take an empty text for a missing option, so that a file can insert a variable that need not be set."""
        return value or None

    @field_validator("masters", mode="before")
    @classmethod
    def _split_text(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("brokers", mode="before")
    @classmethod
    def _split_brokers(cls, value: Any) -> Any:
        return split_names(value)

    @field_validator("masters")
    @classmethod
    def _check_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            split_address(address, DEFAULT_MASTER_PORT)
        return value

    @field_validator("time_zone")
    @classmethod
    def _check_time_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{value!r} is not a time zone; names look like Asia/Shanghai or UTC") from error
        return value


class TubeMQInboundOptions(BaseModel):
    """Options for consuming."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query_priority: int | None = Field(
        default=None,
        ge=101,
        le=303,
        description="Which of a Broker's stores are read (qryPriorityId). The hundreds digit is for consumers without a filter, "
        "the ones digit for those with a filter: 1 reads only the file, 2 also the memory that is being written to the file, 3 "
        "all. Null takes the cluster's setting, usually 301: filtered messages then arrive up to 20 s late.",
    )


class TubeMQOutboundOptions(BaseModel):
    """Options for producing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    in_flight: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Maximum number of requests in flight to one partition. Null is 1 on routes that keep the order, else 16."
        " With more than 1 the order of a partition is kept as long as the Broker refuses no message, and sending is three to"
        " seven times as fast.",
    )
