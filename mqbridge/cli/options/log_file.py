"""The argument that names the file of an embedded log, and the option that replaces a file."""

from pathlib import Path
from typing import Annotated

import typer

SCHEME = "log://"


def parse_log_file(text: str) -> Path:
    """Return the path of a log, which may be written as a URL: `log:///absolute/path.db` or `log://relative/path.db`."""
    return Path(text.removeprefix(SCHEME).partition("?")[0]) if text.startswith(SCHEME) else Path(text)


LogFileArgument = Annotated[
    Path, typer.Argument(metavar="LOG", help="The database file of the log, or its log:// URL.", parser=parse_log_file)
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]
