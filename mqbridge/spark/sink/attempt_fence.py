"""Fences attempts at a task: only the latest attempt may send, and a repeated attempt learns that it is not the first.

Spark starts a task again when the task fails, when its executor is lost, when its stage is repeated, or concurrently with it
(speculation). It starts a whole batch again after a restart of the driver. An earlier attempt may still run somewhere. Some
systems themselves fence off the earlier sender. For all others, each attempt writes a file, its claim, and reads the claims of
other attempts:

- An attempt that finds an earlier claim is a repeated attempt. It waits for two check intervals before it opens anything.
- An attempt that finds a later claim stops. It also stops if its own claim is gone: the driver removes the claims of committed
  batches. Each attempt checks before a send, if a check interval has passed since its last check.

Claims of all tasks of another run of the same batch count too, because that run may have divided the batch differently. The first
task that has waited for earlier runs writes a marker file; a task that finds the marker does not wait for these runs again.

So when the later attempt begins to send, all earlier attempts have stopped, or will stop before their next send. This requires a
folder that all executors can reach, and clocks of equal speed. No times of two machines are compared.
"""

import asyncio
from collections.abc import Collection
from typing import NamedTuple, Protocol

from mqbridge.errors import ClusterError, Failure
from mqbridge.wire.limits import is_number

CHECK_INTERVAL_S = 5.0
"""Longest time for which an attempt sends without checking the claims."""
WAIT_INTERVALS = 2
"""How many check intervals a repeated attempt waits. After one, the earlier attempt checks; the second allows for slow files."""

CLAIM_PREFIX = "claim-"
_WAITED_MARKER = "waited"
"""In the name of the marker file: a task of the run has waited for the tasks of earlier runs."""


class Attempt(NamedTuple):
    """An attempt at a task, ordered by time.

    run  number of the run of the batch, see `Progress.runs`: a restart of the batch is a later run with a higher number
    id   Spark's id of the attempt; later attempts of a run have higher ids
    """

    run: int
    id: int


class ClaimFiles(Protocol):
    """Stores claims as empty files: only the names matter. All tasks of a query share the files."""

    async def names(self, prefix: str) -> Collection[str]:
        """Return the names that begin with the prefix. Raises OSError."""

    async def write(self, name: str) -> None:
        """Write an empty file. Raises OSError."""


class AttemptFence:
    """Fences one attempt at one task of a batch against other attempts. Must be created on an event loop.

    `task` is the number of the task in its stage.
    """

    def __init__(self, files: ClaimFiles, batch_id: int, task: int, attempt: Attempt) -> None:
        self._files, self._attempt, self._batch_id = files, attempt, batch_id
        self._batch_prefix, self._task = claim_prefix(batch_id), task
        self._time = asyncio.get_running_loop().time
        self._checked_at = self._time()
        """When the claims were last read without an error (time of the event loop); at first, when the fence was created."""
        self._check_lock = asyncio.Lock()
        """Held while the claims are checked, because all transfers of the task share the fence."""

    async def begin(self) -> bool:
        """Write the claim, wait until earlier attempts have stopped, and return whether there were earlier attempts.

        The caller awaits this before it opens anything. Raises OSError, and ClusterError if this attempt must stop.
        """
        await self._files.write(f"{self._batch_prefix}{self._task}.{self._attempt.run}-{self._attempt.id}")
        earlier = await self._read_claims()
        if not earlier:
            return False
        marker = f"{self._batch_prefix}{_WAITED_MARKER}.{self._attempt.run}"
        # The marker stands for the wait for earlier runs only, not for an earlier attempt at this task in the same run.
        has_same_run = any(attempt.run == self._attempt.run for attempt in earlier)
        if has_same_run or marker not in await self._files.names(marker):
            await asyncio.sleep(CHECK_INTERVAL_S * WAIT_INTERVALS)
            await self._read_claims()
            await self._files.write(marker)
        return True

    async def check(self) -> None:
        """Check the claims if a check interval has passed since the last check. The caller awaits this before each send.

        Raises OSError, and ClusterError if this attempt must stop.
        """
        async with self._check_lock:
            if self._time() - self._checked_at >= CHECK_INTERVAL_S:
                await self._read_claims()

    async def _read_claims(self) -> list[Attempt]:
        """Return the earlier attempts at this task, and at all tasks of earlier runs.

        Raises OSError, and ClusterError if this attempt must stop.
        """
        now = self._time()
        names = [name.removeprefix(self._batch_prefix) for name in await self._files.names(self._batch_prefix)]
        claims = [claim for claim in map(_parse_claim, names) if claim is not None]  # other files are the marker, or not ours
        if (self._task, self._attempt) not in claims:
            problem = (
                f"batch {self._batch_id} is committed, so this attempt at task {self._task} stops"
                f" (its claim {self._batch_prefix}{self._task} is gone)"
            )
            raise ClusterError(problem, Failure.FATAL)
        attempts = [attempt for task, attempt in claims if task == self._task or attempt.run != self._attempt.run]
        if max(attempts) > self._attempt:
            problem = (
                f"a later attempt at task {self._task} of batch {self._batch_id}, or a later run of this batch, has begun,"
                " so this attempt stops"
            )
            raise ClusterError(problem, Failure.FATAL)
        self._checked_at = now
        return [attempt for attempt in attempts if attempt != self._attempt]


def claim_prefix(batch_id: int) -> str:
    """Return the prefix of the names of all claims of a batch."""
    return f"{CLAIM_PREFIX}{batch_id}-"


def batch_of_claim(name: str) -> int | None:
    """Return the id of the batch that a claim belongs to, from the name of its file; None for a file that is no claim."""
    batch = name.removeprefix(CLAIM_PREFIX).partition("-")[0]
    return int(batch) if is_number(batch) else None


def _parse_claim(text: str) -> tuple[int, Attempt] | None:
    """Return the task and the attempt of a claim, whose name after the prefix is `TASK.RUN-ID`; None for another name."""
    task, _, attempt = text.partition(".")
    run, _, attempt_id = attempt.partition("-")
    return (int(task), Attempt(int(run), int(attempt_id))) if all(map(is_number, (task, run, attempt_id))) else None
