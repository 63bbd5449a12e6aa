"""The configuration of an embedded log."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LogCluster(BaseModel):
    """One log: a file of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Path = Field(description="The database file. It and its folder are created; `-wal` and `-shm` files lie beside it.")
    synchronous: Literal["full", "normal"] = Field(
        default="full",
        description="`full` acknowledges after the disk has confirmed: nothing is lost at a power failure. `normal` acknowledges"
        " after the operating system has it: a killed process loses nothing, a power failure may lose the last seconds.",
    )
    retention_hours: float | None = Field(
        default=168.0, gt=0, description="Age in hours after which a batch is dropped, read or not; null keeps everything."
    )
    retention_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Bytes per partition above which the oldest batches are dropped, read or not; null sets no limit.",
    )
    max_message_bytes: int = Field(
        default=16 << 20,
        gt=0,
        le=512 << 20,
        description="Most bytes of one message with all its fields; larger ones are refused.",
    )
    poll_ms: int = Field(
        default=100, ge=1, le=60_000, description="How often to look for what other processes appended, in milliseconds."
    )
    lease_s: float = Field(
        default=10.0,
        ge=0.2,
        le=3600,
        description="Seconds without a heartbeat after which the partitions of a group's member go to the others. A heartbeat is"
        " sent every quarter of it.",
    )
    busy_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=600,
        description="Seconds to wait for another process that is writing, before it counts as a failure.",
    )


class LogInbound(BaseModel):
    """Nothing to set when consuming from a log."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LogOutbound(BaseModel):
    """Nothing to set when producing to a log."""

    model_config = ConfigDict(extra="forbid", frozen=True)
