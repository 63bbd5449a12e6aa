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
FILE_NAME = re.compile(r"# ([\w-]+\.(?:yaml|py))\n")
"""Matches the first line of a block that the reader has to save: the name of the file."""
RUN_LINE = re.compile(r"^mqbridge run (\S+)$", re.MULTILINE)
"""Matches a line that starts the gateway, which a reader runs in another terminal."""
MARK = "@@ block"
"""Printed before the output of each shell block."""
DEFAULT_LISTEN, SECOND_LISTEN = "127.0.0.1:8098", "127.0.0.1:8099"

PROLOGUE = """
set -euo pipefail
trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT
"""
IN_BACKGROUND = """
mqbridge run {config} &
until curl --silent --fail http://{listen}/health/ready; do sleep 0.2; done
"""


def run(page: str, folder: Path, replacements: Mapping[str, str] | None = None) -> list[str]:
    """Run all shell blocks of a page in a new folder; return the output of each.

    `replacements` has the real addresses and names by those of the page. If a command fails, the test fails and shows all output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    names = {**(replacements or {}), DEFAULT_LISTEN: first, SECOND_LISTEN: second}
    script = PROLOGUE + "".join(_part(block, names, first) for block in blocks(ROOT / page, "yaml", "sh", "python"))
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
    """Return the part of the script for one block of the page; `listen` is the address of the first gateway."""
    text = block.text
    for old, new in names.items():
        text = text.replace(old, new)
    if block.language == "sh":
        return f"echo '{MARK}'\n" + RUN_LINE.sub(lambda match: IN_BACKGROUND.format(config=match[1], listen=listen), text)
    file_name = FILE_NAME.match(text)
    if file_name is None:
        return ""  # a fragment, which the reader does not save
    if "routes:" in text and not re.search(r"^http:", text, re.MULTILINE):
        text += f"http: {{listen: '{listen}'}}\n"  # the default port may be in use
    return f"cat > {file_name[1]} <<'END_OF_FILE'\n{text}END_OF_FILE\n"
