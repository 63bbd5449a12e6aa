"""That only one mirror has a checkpoint folder which no lock of an operating system reaches.

The holder writes a file again and again, each time with another number. Whoever finds the file watches it: when it changes,
somebody is there; when it does not for long enough, its holder is gone, and the file is taken over. No two clocks are compared.

It is as good as a file system that replaces files can make it: of two who take over in the same second the later one goes on. A
holder that could not write for so long that another took over, as on a machine that was suspended, hears of it at its next look.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from uuid import uuid4

import orjson
from pyarrow import fs

from mqbridge.errors import ConfigError

log = logging.getLogger(__name__)

RENEW_S = 10.0
GONE_S = 40.0
"""Not written for so long: its holder is gone."""
SETTLE_S = 2.0
"""Between writing it first and looking whether somebody else did."""


class Lease:
    """Held from `take` to `release`; `place` is what people call the folder.

    `on_lost` is called, in a thread of the lease, when another has it.
    """

    def __init__(self, files: fs.FileSystem, path: str, place: str, on_lost: Callable[[], None] = lambda: None) -> None:
        self._files, self._path, self._place, self._on_lost = files, path, place, on_lost
        self.is_lost = False
        self._me = uuid4().hex
        self._number = 0
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def take(self) -> None:
        """Wait until it is known that nobody has it. Raises ConfigError when somebody does, OSError."""
        found = self._read()
        if found is not None:
            log.warning("%s was in use by %s: looking for %.0f s whether it still is", self._place, _holder(found), GONE_S)
        until = time.monotonic() + GONE_S
        while found is not None and time.monotonic() < until:
            time.sleep(min(1.0, RENEW_S / 4))
            if (now := self._read()) != found:
                if now is None:
                    break
                raise self._refusal(now)
        self._write()
        time.sleep(SETTLE_S)
        if (now := self._read()) is None or now["id"] != self._me:
            raise self._refusal(now or {})
        self._renewing = threading.Thread(target=self._renew, name="mqbridge-lease", daemon=True)
        self._renewing.start()

    def release(self) -> None:
        """Let others have it at once."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
            with contextlib.suppress(OSError):
                if not self.is_lost and not self._is_anothers():
                    self._files.delete_file(self._path)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            try:
                if self._is_anothers():
                    self.is_lost = True
                    log.error("%s was taken over by another mirror: this one stops", self._place)
                    self._on_lost()
                    return
                self._write()
            except OSError as error:
                log.warning("that %s is in use cannot be written: %s", self._place, error)

    def _is_anothers(self) -> bool:
        found = self._read()
        return found is not None and found.get("id") not in (self._me, "")

    def _write(self) -> None:
        self._number += 1
        content = {"id": self._me, "number": self._number, "holder": f"process {os.getpid()} on {socket.gethostname()}"}
        with self._files.open_output_stream(self._path) as file:
            file.write(orjson.dumps(content))

    def _read(self) -> dict[str, object] | None:
        try:
            with self._files.open_input_stream(self._path) as file:
                found = orjson.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError:  # it is being written
            return {"id": "", "number": 0}
        return found if isinstance(found, dict) else None

    def _refusal(self, found: dict[str, object]) -> ConfigError:
        return ConfigError(
            f"the checkpoint folder {self._place} is in use by another mirror ({_holder(found)})",
            hint="Give each mirror a folder of its own, or stop the other one",
        )


def _holder(found: dict[str, object]) -> str:
    return str(found.get("holder", "somebody"))
