"""All problems of a configuration at once."""

import difflib
from collections.abc import Iterable, Sequence

from mqbridge.errors import ConfigError


class ConfigErrors(ConfigError):
    """Every problem of one configuration, in the order of its lines. `errors` has them one by one."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(map(str, self.errors)))


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint that names the nearest of the known words, or all of them when none is near."""
    names = sorted(known)
    if not names:
        return ""
    close = difflib.get_close_matches(str(word), names, n=1)
    if not close:
        # A key that only differs in case or in a few dropped letters still deserves its word.
        lowered = {name.lower(): name for name in names}
        close = [lowered[found] for found in difflib.get_close_matches(str(word).lower(), lowered, n=1)]
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}"
