"""The command line of the modules that generate a page of docs/: `--check` or `--write`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def check_or_write(module: str, path: Path, expected: str, arguments: Sequence[str] | None = None) -> int:
    """Compare the file with the generated text `expected`, or write that text; return the exit code, 1 if the file differs.

    `module` is the name of the calling module, and `arguments` its command line (default: that of the process).
    """
    command = f"python -m {module}"
    parser = argparse.ArgumentParser(prog=command, description=f"Generates {path.name} from the code.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="exit 1 when the page is not current")
    action.add_argument("--write", action="store_true", help="write the page")
    if parser.parse_args(arguments).write:
        path.write_text(expected, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == expected:
        return 0
    print(f"{path} is not current: run {command} --write", file=sys.stderr)
    return 1
