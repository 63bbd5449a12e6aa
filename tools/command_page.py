"""Writes docs/reference/command-line.md from the commands' own help.

python -m tools.command_page --check     exits 1 when the page is not current
python -m tools.command_page --write
"""

import re
import sys

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from mqbridge.cli.app import app
from mqbridge.cli.lazy_group import LazyGroup
from tools.generated_page import DOCS, check_or_write

PAGE = DOCS / "reference" / "command-line.md"
HEADER = """# Command line

<!-- Written by `python -m tools.command_page --write` from the commands' help. Do not edit. -->

"""


def page() -> str:
    """Return the whole page. Makes all groups load their commands at once, for the rest of the process."""
    LazyGroup.is_lazy = False
    group = get_command(app)
    text = get_docs_for_click(obj=group, ctx=typer.Context(group), name="mqbridge")
    text = re.sub(r"^# `mqbridge`\n+", "", text)
    return HEADER + re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).rstrip() + "\n"


if __name__ == "__main__":
    sys.exit(check_or_write("tools.command_page", PAGE, page()))
