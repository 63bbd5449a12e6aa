"""The settings of one log: its file, what it keeps, how fast it reacts."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.units import Duration, Size
from mqbridge.config.urls import split_url


class LogSettings(ClusterModel):
    """One log: a file of its own."""

    path: Path = Field(description="The database file. It and its folder are created; `-wal` and `-shm` files lie beside it.")
    synchronous: Literal["full", "normal"] = Field(
        default="full",
        description="`full` acknowledges after the disk has confirmed: nothing is lost at a power failure. `normal` acknowledges"
        " after the operating system has it: a killed process loses nothing, a power failure may lose the last seconds.",
    )
    retention: Duration | None = Field(
        default=7 * 86400.0, gt=0, description="Age after which a batch is dropped, read or not; null keeps everything."
    )
    retention_bytes: Size | None = Field(
        default=None,
        gt=0,
        description="Size of a partition above which the oldest batches are dropped, read or not; null sets no limit.",
    )
    max_message_bytes: Size = Field(
        default=16 << 20,
        gt=0,
        le=512 << 20,
        description="Most bytes of one message with all its fields; larger ones are refused.",
    )
    poll: Duration = Field(default=0.1, ge=0.001, le=60, description="How often to look for what other processes appended.")
    lease: Duration = Field(
        default=10.0,
        ge=0.2,
        le=3600,
        description="Time without a heartbeat after which the partitions of a group's member go to the others. A heartbeat is"
        " sent every quarter of it.",
    )
    busy_timeout: Duration = Field(
        default=5.0,
        gt=0,
        le=600,
        description="How long to wait for another process that is writing, before it counts as a failure.",
    )

    @classmethod
    def from_url(cls, url: str) -> Self:
        """`log:///absolute/path.db` or `log://relative/path.db`, with `?NAME=VALUE` for the other settings."""
        path, settings = split_url(url, cls, without={"path"})
        return cls.model_validate(settings | {"path": path.removeprefix("log://")})
