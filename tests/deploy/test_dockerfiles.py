"""The commands of the images, run without a container engine.

The python lines and the health check run here, with the interpreter of the tests. OUTSIDE lists the other programs, with the
reason why no test runs them.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

from mqbridge import native
from mqbridge.config.options.http import Http
from tests.docs.shell import commands, parse_arguments, program

ROOT = Path(__file__).resolve().parents[2]
GATEWAY, SPARK = "Dockerfile", "deploy/spark/Dockerfile"
IMAGES = pytest.mark.parametrize("path", [GATEWAY, SPARK])
OUTSIDE = {
    "apt-get": "changes the machine",
    "cd": "a part of the shell",
    "chown": "for root",
    "mkdir": "makes a folder of the image",
    "pip": "downloads packages; the versions are checked here, and test_guides.py installs the wheel",
    "rm": "removes folders of the image",
    "useradd": "for root",
}


class Instruction(NamedTuple):
    """An instruction of a Dockerfile: its name, and the rest of its lines."""

    name: str
    text: str


def instructions(path: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile, without comments."""
    text = re.sub(r"^#.*\n", "", (ROOT / path).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in text.splitlines() if line]


def shell_lines(path: str) -> list[str]:
    """Return the lines that run in the image's shell: those of RUN, and the health check."""
    found = {name: [each.text for each in instructions(path) if each.name == name] for name in ("RUN", "HEALTHCHECK")}
    return [*found["RUN"], *(text.partition("CMD ")[2] for text in found["HEALTHCHECK"])]


def calls(path: str) -> list[tuple[str, list[str]]]:
    """Return the program and the arguments of each command in the image's shell lines."""
    return [program(words) for line in shell_lines(path) for words in commands(line)]


def python_code(path: str) -> list[str]:
    """Return the code of each call of `python -c`."""
    return [arguments[1] for name, arguments in calls(path) if name == "python" and arguments[0] == "-c"]


def run_python(code: str, folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run code of an image with the interpreter of the tests."""
    environ = {name: value for name, value in os.environ.items() if name != native.SWITCH}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Run an HTTP server that answers requests for `/health/ready` with this status; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health/ready" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@IMAGES
def test_images_copy_existing_files_and_build_the_compiled_module_with_their_own_python(path: str) -> None:
    """The stage that builds the compiled module has the same base image as the final stage: the same Debian and Python."""
    bases: dict[str, str] = {}
    for name, text in instructions(path):
        match [name, *text.split()]:
            case ["FROM", base, *named]:
                bases[named[-1] if named else ""] = base
            case ["COPY", source, *_] if source.startswith("--from="):
                assert source.removeprefix("--from=") in bases, text
            case ["COPY", *sources, _]:
                assert all((ROOT / source).exists() for source in sources), text
    assert bases["native"] == bases[""]
    pips = [" ".join(arguments) for name, arguments in calls(path) if name == "pip"]
    assert any(re.fullmatch(r"wheel .*--wheel-dir /wheels \./native", arguments) for arguments in pips)
    assert any(arguments.startswith("install ") and arguments.endswith("/wheels/*.whl") for arguments in pips)


@IMAGES
def test_the_shell_lines_are_valid(path: str) -> None:
    checked = subprocess.run(["sh", "-n"], input="\n".join(shell_lines(path)), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@IMAGES
def test_every_program_runs_or_is_listed_with_a_reason(path: str) -> None:
    for name, arguments in calls(path):
        is_venv = (name, arguments[:2]) == ("python", ["-m", "venv"])  # needs no test
        assert name in OUTSIDE or is_venv or (name, arguments[0]) == ("python", "-c"), f"{path}: {name} {arguments}"


@IMAGES
def test_an_image_without_the_compiled_module_is_not_built_and_names_the_reason(path: str, tmp_path: Path) -> None:
    [check] = [code for code in python_code(path) if "native" in code]
    failed = run_python(check, tmp_path, **{native.SWITCH: "0"})
    assert failed.returncode != 0
    assert failed.stderr.splitlines()[-1].startswith("AssertionError: running without the compiled module"), failed.stderr


@IMAGES
@pytest.mark.skipif(native.compiled is None, reason=native.notice)
def test_an_image_with_the_compiled_module_is_built(path: str, tmp_path: Path) -> None:
    [check] = [code for code in python_code(path) if "native" in code]
    passed = run_python(check, tmp_path)
    assert passed.returncode == 0, passed.stderr


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
def test_the_health_check_follows_the_ready_endpoint(status: int, is_healthy: bool, tmp_path: Path) -> None:
    [check] = [code for code in python_code(GATEWAY) if "health" in code]
    assert Http().listen in check
    with answering(status) as address:
        done = run_python(check.replace(Http().listen, address), tmp_path)
    assert (done.returncode == 0) == is_healthy, done.stderr


def test_the_exposed_port_is_the_default_of_the_gateway() -> None:
    assert [each.text for each in instructions(GATEWAY) if each.name == "EXPOSE"] == [str(Http().port)]


def test_the_image_runs_a_shipped_configuration_by_default() -> None:
    found = dict(instructions(GATEWAY))
    assert json.loads(found["ENTRYPOINT"]) == ["mqbridge"]
    arguments: Sequence[str] = json.loads(found["CMD"])
    parse_arguments(arguments, GATEWAY)
    assert "mqbridge/shipped /etc/mqbridge" in [each.text for each in instructions(GATEWAY) if each.name == "COPY"]
    assert (ROOT / "mqbridge" / "shipped" / Path(arguments[-1]).relative_to("/etc/mqbridge")).exists()


def test_the_image_for_spark_has_the_locked_versions() -> None:
    lock = dict(re.findall(r"^([\w-]+)==(.+)$", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert dict(instructions(SPARK))["ARG"] == f"SPARK_IMAGE=apache/spark:{lock['pyspark']}"
    [install] = [arguments for name, arguments in calls(SPARK) if (name, arguments[0]) == ("pip", "install")]
    assert "pyarrow" in lock.keys() & set(install), "the only package that neither mqbridge requires nor Spark's image has"
