"""The configuration of a TubeMQ cluster."""

from typing import Any, Self
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.units import Duration
from mqbridge.config.urls import ADMIN, split_url
from mqbridge.net.dial import split_address
from mqbridge.tubemq.client.master import DEFAULT_PORT

URL_HEARTBEAT = "2s"


class TubeMQCluster(ClusterModel):
    """One cluster: its Masters, and its administrators' web address where there is one."""

    masters: tuple[str, ...] = Field(
        min_length=1,
        description="The Masters, host:port, as a list or one text with commas; port 8715 may be left out.",
        examples=["10.0.0.1:8715,10.0.0.2:8715"],
    )
    admin_url: str | None = Field(
        default=None,
        description="The Master's web address. With it the gateway can list and create topics, list groups and see offsets.",
        examples=["http://10.0.0.1:8080"],
    )
    admin_token: SecretStr | None = Field(
        default=None, description="The Master's confModAuthToken, needed only to create topics."
    )
    time_zone: str = Field(
        default="UTC", description="The zone that `$msgTime$` of messages is written in.", examples=["Asia/Shanghai"]
    )
    heartbeat: Duration = Field(
        default=13.0,
        gt=0,
        le=15.0,
        description="Time between heartbeats. Partitions are handed out in the answers, so this is how fast a group "
        "reacts; a Master takes a consumer for dead after 30 s without one.",
    )
    request_timeout: Duration = Field(
        default=10.0,
        ge=1.0,
        le=600.0,
        description="How long a server may be silent before its answers count as lost; bytes that come, and those that leave "
        "after they had to queue, count as life. Servers drop requests that waited longer.",
    )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """`tubemq://host:8715[,host:8715][?admin=http://host:8080&admin_token=…]`; a short heartbeat, because a person waits."""
        masters, settings = split_url(url, cls, without={"masters"}, short=ADMIN)
        addresses = masters.removeprefix("tubemq://").rstrip("/")
        return cls.model_validate({"heartbeat": URL_HEARTBEAT} | settings | {"masters": addresses})

    @field_validator("masters", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("masters")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            split_address(address, DEFAULT_PORT)
        return value

    @field_validator("time_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{value!r} is not a time zone; names look like Asia/Shanghai or UTC") from error
        return value


class TubeMQInboundOptions(BaseModel):
    """Consuming."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query_priority: int | None = Field(
        default=None,
        ge=101,
        le=303,
        description="Which of a Broker's stores are read (qryPriorityId): hundreds for consumers without a filter, ones for "
        "those with one; 1 only the file, 2 also memory that is being written, 3 all. Null is the cluster's setting, "
        "mostly 301, with which filtered messages come up to 20 s late.",
    )


class TubeMQOutboundOptions(BaseModel):
    """Producing: nothing to set."""

    model_config = ConfigDict(extra="forbid", frozen=True)
