"""Runs a page of the documentation as a reader would: its files are saved, its commands run in order, in one shell."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks
from tests.kit.guard import guard
from tests.kit.process import free_ports

TIMEOUT_S = 200
NAMED = re.compile(r"# ([\w-]+\.yaml)\n")
"""The first line of a file to save."""
ENDLESS = re.compile(r"^mqbridge run (\S+)$", re.MULTILINE)
"""The gateway until SIGTERM, which a reader has in another terminal."""
MARK = "@@ block"
DEFAULT_LISTEN, SECOND_LISTEN = "127.0.0.1:8098", "127.0.0.1:8099"

PROLOGUE = """
set -euo pipefail
trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT
"""
IN_BACKGROUND = """
mqbridge run {config} &
until curl --silent --fail http://{listen}/health/ready; do sleep 0.2; done
"""


def run(page: str, folder: Path, replaced: Mapping[str, str] | None = None) -> list[str]:
    """Run all shell blocks of a page in a new folder; return the output of each.

    `replaced` has what stands for the addresses and names of the page. A command that fails, fails the test with all output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    names = {**(replaced or {}), DEFAULT_LISTEN: first, SECOND_LISTEN: second}
    script = PROLOGUE + "".join(_part(block, names, first) for block in blocks(ROOT / page, "yaml", "sh"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path, "HOME": str(folder), "COLUMNS": "250"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        guard().process(process.pid)
        try:
            code: int | None = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    printed = (folder / "out").read_text()
    assert code == 0, f"{page} ended with {code or 'no exit code in time'}\n{printed}\n{(folder / 'err').read_text()}"
    return printed.split(f"{MARK}\n")[1:]


def _part(block: Block, names: Mapping[str, str], listen: str) -> str:
    """The part of the script for one block of the page."""
    text = block.text
    for old, new in names.items():
        text = text.replace(old, new)
    if block.language == "sh":
        return f"echo '{MARK}'\n" + ENDLESS.sub(lambda found: IN_BACKGROUND.format(config=found[1], listen=listen), text)
    named = NAMED.match(text)
    if named is None:
        return ""  # a part of a configuration, to look at
    if "routes:" in text and not re.search(r"^http:", text, re.MULTILINE):
        text += f"http: {{listen: '{listen}'}}\n"  # the usual port may be taken
    return f"cat > {named[1]} <<'END_OF_FILE'\n{text}END_OF_FILE\n"
