"""Only the last attempt at a task sends, and it knows that it is not the first.

Spark starts a task again when it failed, when it has lost sight of it, when its stage is repeated, or side by side with it
(speculation); and a whole batch again when the driver is restarted. An earlier attempt may still run somewhere. Some systems keep
a second sender out. For all others each attempt writes a file, its claim:

- One that finds an earlier claim is a repetition, and waits for two intervals.
- One that finds a later claim stops, or its own no more: then the batch is done. It looks before it sends, whenever an interval
  has passed since it looked last.

Tasks of another run of the same batch count as well: it may have divided the batch in another way. Whoever has waited for those
of earlier runs writes a note of it, so a run of many tasks waits once.

So when the later one begins, all others have stopped, or are going to before they send more. It takes a folder that all executors
reach, and clocks that run equally fast; nothing is compared between two machines.
"""

import asyncio
from collections.abc import Collection
from typing import NamedTuple, Protocol

from mqbridge.errors import ClusterError, Failure

INTERVAL_S = 5.0
WAIT_INTERVALS = 2

PREFIX = "claim-"
_WAITED = "waited"


class Attempt(NamedTuple):
    """When an attempt was made, compared to others: in which run of its batch, and Spark's number of it, which only grows."""

    run: int
    id: int


class ClaimFiles(Protocol):
    """Where claims are kept: names of files, for all tasks of a query."""

    async def names(self, prefix: str) -> Collection[str]:
        """Those that begin so. Raises OSError."""

    async def write(self, name: str) -> None:
        """Make one. Raises OSError."""


class Claims:
    """Those of one task of one batch, as one attempt sees them."""

    def __init__(self, files: ClaimFiles, batch_id: int, task: int, attempt: Attempt) -> None:
        self._files, self._attempt = files, attempt
        self._batch, self._task = claims_of(batch_id), task
        self._time = asyncio.get_running_loop().time
        self._looked_at = self._time()
        self._looking = asyncio.Lock()

    async def begin(self) -> bool:
        """To be waited for before anything is opened; whether there were attempts before. Raises ClusterError as `check`."""
        await self._files.write(f"{self._batch}{self._task}.{self._attempt.run}-{self._attempt.id}")
        others = await self._look()
        if not others:
            return False
        waited = f"{self._batch}{_WAITED}.{self._attempt.run}"
        if any(one.run == self._attempt.run for one in others) or waited not in await self._files.names(waited):
            await asyncio.sleep(INTERVAL_S * WAIT_INTERVALS)
            await self._look()
            await self._files.write(waited)
        return True

    async def check(self) -> None:
        """To be waited for before something is sent. Raises OSError, and ClusterError where it may not send any more."""
        async with self._looking:
            if self._time() - self._looked_at >= INTERVAL_S:
                await self._look()

    async def _look(self) -> list[Attempt]:
        now = self._time()
        names = [name.removeprefix(self._batch) for name in await self._files.names(self._batch)]
        claims = [_claim(name) for name in names if not name.startswith(_WAITED)]
        if (self._task, self._attempt) not in claims:
            raise ClusterError(f"{self._batch}{self._task} is done, so this attempt stops", Failure.FATAL)
        found = [attempt for task, attempt in claims if task == self._task or attempt.run != self._attempt.run]
        if max(found) > self._attempt:
            raise ClusterError(f"another attempt at {self._batch}{self._task} has begun, so this one stops", Failure.FATAL)
        self._looked_at = now
        return [attempt for attempt in found if attempt != self._attempt]


def claims_of(batch_id: int) -> str:
    """What the names of all claims of a batch begin with."""
    return f"{PREFIX}{batch_id}-"


def batch_of(name: str) -> int:
    """The batch that a claim is for."""
    return int(name.removeprefix(PREFIX).partition("-")[0])


def _claim(text: str) -> tuple[int, Attempt]:
    """Whose it is: a task and one of its attempts."""
    task, _, attempt = text.partition(".")
    run, _, number = attempt.partition("-")
    return int(task), Attempt(int(run), int(number))
