"""Settings of one log: file, retention, limits, timing."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator

from mqbridge.adapter.registry import ClusterModel
from mqbridge.config.units import Duration, Size
from mqbridge.config.urls import split_url
from mqbridge.log.store.names import check_name


class LogSettings(ClusterModel):
    """Settings of one log, which has a file of its own."""

    path: Path = Field(
        description="The database file. It and its folder are created if missing. Files with its name and `-wal`, `-shm` and"
        " `-mark` lie beside it and belong to it."
    )
    synchronous: Literal["full", "normal"] = Field(
        default="full",
        description="`full` acknowledges after the disk has confirmed: a power failure loses nothing. `normal` acknowledges after"
        " the operating system has the data: a killed process loses nothing, a power failure may lose the last seconds.",
    )
    retention: Duration | None = Field(
        default=7 * 86400.0, gt=0, description="Age after which stored messages are dropped, read or not; null keeps everything."
    )
    retention_bytes: Size | None = Field(
        default=None,
        gt=0,
        description="Size of a partition above which its oldest messages are dropped when others are sent, read or not; null sets"
        " no limit.",
    )
    max_bytes: Size | None = Field(
        default=None,
        ge=64 << 20,
        description="Size of the log above which sends wait until old messages are dropped, 64 MiB or more; null sets no limit.",
    )
    reserve: Size = Field(
        default=16 << 20,
        ge=1 << 20,
        description="Free space that sends leave on the disk, besides as much as the `-wal` file has: reading, committing and"
        " deleting need some. Sends wait while there is less.",
    )
    max_message_bytes: Size = Field(
        default=16 << 20,
        gt=0,
        le=512 << 20,
        description="Maximum bytes of one message with all its fields; larger messages are refused.",
    )
    poll: Duration = Field(
        default=0.1, ge=0.001, le=60, description="How often to look for messages that other processes appended."
    )
    lease: Duration = Field(
        default=10.0,
        ge=0.2,
        le=3600,
        description="Time without a heartbeat after which the partitions of a group's member are assigned to the other members."
        " A heartbeat is sent four times in this period.",
    )
    busy_timeout: Duration = Field(
        default=5.0,
        gt=0,
        le=600,
        description="How long an operation waits for another process that is writing to the file, before it fails.",
    )

    @field_validator("path")
    @classmethod
    def _is_a_file(cls, path: Path) -> Path:
        if path.name in {"", ":memory:"}:
            raise ValueError("a log is a file on a disk: name one, such as /var/lib/mqbridge/log.db")
        return path

    def check_topic_name(self, topic: str) -> None:
        """Raise ConfigError if a topic cannot have this name."""
        check_name("topic", topic)

    @property
    def identity(self) -> str:
        """The file's absolute path on this machine, with symbolic links resolved."""
        return f"log://{self.path.resolve()}"

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read settings from `log:///absolute/path.db` or `log://relative/path.db`, with `?NAME=VALUE` for the other settings."""
        path, settings = split_url(url, cls, excluded={"path"})
        return cls.model_validate(settings | {"path": path.removeprefix("log://")})
