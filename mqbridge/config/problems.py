"""An error for all problems of a configuration, and hints for unknown words."""

import difflib
from collections.abc import Iterable, Sequence

from mqbridge.errors import ConfigError


class ConfigErrors(ConfigError):
    """Every problem of one configuration, in the order of the file's lines; `errors` lists them separately."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(map(str, self.errors)))


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a hint for an unknown `word`: `Did you mean …?`, or the known words if none is near; "" if no word is known."""
    names = sorted(known)
    if not names:
        return ""
    close = difflib.get_close_matches(str(word), names, n=1)
    if not close:
        # Ignore case, so that a key in the wrong case with a few missing letters is found too.
        lowered = {name.lower(): name for name in names}
        close = [lowered[match] for match in difflib.get_close_matches(str(word).lower(), lowered, n=1)]
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}"
