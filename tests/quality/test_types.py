"""What mypy finds in the stub of the compiled module, and in programs that use the clients."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mypy import api

from mqbridge import native

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "pyproject.toml"


@pytest.mark.skipif(native.compiled is None, reason=native.notice)
def test_the_stub_matches_the_compiled_module(tmp_path: Path) -> None:
    """Except for the package that maturin puts around the library; the stub's imports are checked with the project's settings."""
    maturin_package = tmp_path / "maturin_package"
    maturin_package.write_text("mqbridge_native\\.(__all__|mqbridge_native)\n")
    command = [sys.executable, "-m", "mypy.stubtest", "mqbridge_native", "--mypy-config-file", SETTINGS]
    done = subprocess.run([*command, "--allowlist", maturin_package], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_mypy_checks_calls_of_the_clients(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
from mqbridge import PulsarClient, RocketMQClient, TubeMQClient
from mqbridge.library.contract import Client, Consumer, Producer, SendReceipt
from mqbridge.library.received import ReceivedMessage

clients: list[Client] = [PulsarClient("pulsar://a"), RocketMQClient("rocketmq://a"), TubeMQClient("tubemq://a")]

async def use(client: Client) -> None:
    producer: Producer = await client.producer("orders")
    stored: SendReceipt = await producer.send(b"", key="k")
    async with client.consumer("orders", group="billing") as consumer:
        received: ReceivedMessage = await consumer.receive()
        consumer.acknowledge(received)

async def wrong() -> None:
    PulsarClient("pulsar://a").consumer("orders", group="g", strat="latest")
    RocketMQClient("rocketmq://a").consumer("orders", group="g", start="soon")
    await (await TubeMQClient("tubemq://a").producer("orders")).send("text")
""")
    out, err, _ = api.run(["--strict", "--no-error-summary", "--config-file", str(SETTINGS), str(program)])
    assert err == ""
    wrong_lines = [int(number) for number in re.findall(r"program\.py:(\d+): error", out)]
    assert sorted(set(wrong_lines)) == [16, 17, 18], out
