"""The committed protobuf modules match the .proto files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_generated_modules_are_current() -> None:
    run = subprocess.run([sys.executable, ROOT / "proto" / "generate.py", "--check"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
