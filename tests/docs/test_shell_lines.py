"""Every shell line of the documentation: it runs as part of a guide, or it is checked here as far as this machine can.

`test_guides.py` runs the pages in RUN_PAGES. In all other pages, lines of `mqbridge` must parse and targets of `make` must exist.
OUTSIDE lists other programs, with the reason why no test runs them. All lines must be valid bash.
"""

import re
import subprocess

import pytest

from tests.docs.pages import ROOT, Block, blocks, name_of, pages
from tests.docs.shell import commands, parse_arguments, program

RUN_PAGES = {
    "docs/tutorial.md",
    "docs/how-to/dead-letters.md",
    "docs/how-to/embedded-log.md",
    "docs/how-to/keep-your-pulsar-sdk.md",
    "docs/how-to/keep-your-rocketmq-sdk.md",
    "docs/how-to/keep-your-tubemq-sdk.md",
    "docs/how-to/mirror-a-topic.md",
    "docs/how-to/move-a-group.md",
    "docs/how-to/tubemq-to-pulsar.md",
    "docs/how-to/two-instances.md",
    "docs/how-to/upgrade.md",
}
OUTSIDE = {
    "apt-get": "changes the machine; tests/prerequisites.sh does the same where it may",
    "docker": "no engine where the tests run",
    "git": "changes the repository",
    "keytool": "a part of the JDK; the authority of the tests is tests/kit/authority.py",
    "mqadmin": "a tool of RocketMQ's distribution; its commands are sent by tests/kit/rocketmq_lock.py",
    "openssl": "the authority of the tests is tests/kit/authority.py",
    "pipx": "installs for the user; the wheel is installed by test_guides.py",
    "pulsar": "a tool of Pulsar's distribution; tests/kit/pulsar_locked.py makes the tokens of the tests",
    "pulsar-admin": "a tool of Pulsar's distribution; the tests call the same REST interface",
    "rustup": "installs for the user",
    "spark-submit": "needs YARN or Kubernetes; tests/spark/test_spark_cluster.py runs on a standalone cluster",
    "venv-pack": "packs for YARN",
}
HARMLESS = {"cd", "curl", "date", "echo", "export", "mv", "pip", "printf", "python", "python3.11", "rm", "source", "sudo"}
"""Shell programs that need no test, and programs that the test of their page runs."""
SHELL_BLOCKS = [block for page in pages() for block in blocks(page, "sh", "bash")]


def calls_of(name: str) -> list[tuple[Block, list[str]]]:
    """Return the block and the arguments of every call of this program."""
    calls = [(block, program(words)) for block in SHELL_BLOCKS for words in commands(block.text)]
    return [(block, arguments) for block, (called, arguments) in calls if called == name]


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=lambda block: name_of(block.page))
def test_shell_lines_are_valid(block: Block) -> None:
    checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("block", "arguments"), calls_of("mqbridge"), ids=lambda part: " ".join(part)[:60] if isinstance(part, list) else ""
)
def test_mqbridge_commands_in_the_docs_exist(block: Block, arguments: list[str]) -> None:
    parse_arguments(arguments, name_of(block.page))


def test_make_targets_in_the_docs_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block, arguments in calls_of("make"):
        named = {word for word in arguments if "=" not in word}
        assert named <= targets, f"{name_of(block.page)}: make {named - targets}"


def test_every_program_in_the_docs_runs_or_is_listed_with_a_reason() -> None:
    known = OUTSIDE.keys() | HARMLESS | {"make", "mqbridge", "", "done", "for"}
    for block in SHELL_BLOCKS:
        if name_of(block.page) not in RUN_PAGES:
            called = {program(words)[0] for words in commands(block.text)}
            assert called <= known, f"{name_of(block.page)}: {called - known}"


def test_every_page_with_shell_lines_has_a_test() -> None:
    source = (ROOT / "tests/docs/test_guides.py").read_text()
    assert set(re.findall(r'run\("([^"]+)"', source)) == RUN_PAGES
