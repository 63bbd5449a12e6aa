"""Rules for the names of topics and groups, with a reversible escape for names that a system refuses.

The escape of a character is `x_`, its code point in hexadecimal digits, and `_`: `order-events` is `orderx_2d_events`. It
consists of letters, digits and underscores, which every system accepts, and begins with a letter. An `x` of the name that would
look like the begin of an escape is escaped, too.
"""

import re
from dataclasses import dataclass

_ESCAPE = re.compile(r"x_([0-9a-f]{1,6})_")


@dataclass(frozen=True, slots=True)
class NameRule:
    """The names that a kind of thing can have in a system.

    `first` and `others` match one character, the first one and each later one; they match ASCII letters, and `others` digits and
    the underscore, too. `max_chars` and `min_chars` are the maximum and the minimum length, and `text` describes the rule for
    people.
    """

    first: re.Pattern[str]
    others: re.Pattern[str]
    max_chars: int
    text: str
    min_chars: int = 1

    def problem(self, name: str) -> str | None:
        """Return why a name is invalid; None if it is valid."""
        if not name:
            return f"it is empty; {self.text}"
        if not self.min_chars <= len(name) <= self.max_chars:
            return f"it has {len(name)} characters; {self.text}"
        wrong = next((char for index, char in enumerate(name) if not self._accepts(char, index)), None)
        return None if wrong is None else f"{wrong!r} is not permitted; {self.text}"

    def escape(self, name: str) -> str:
        """Return the name with each character that the system refuses escaped, or all of a name that is too short.

        The result may be too long: see `problem`.
        """
        if len(name) < self.min_chars:
            return "".join(f"x_{ord(char):x}_" for char in name)
        ambiguous = {match.start() for match in re.finditer(r"(?=x_[0-9a-f]{1,6}_)", name)}
        return "".join(
            char if self._accepts(char, index) and index not in ambiguous else f"x_{ord(char):x}_"
            for index, char in enumerate(name)
        )

    def unescape(self, name: str) -> str:
        """Return the name of which this is the escape."""
        return _ESCAPE.sub(_character_of, name)

    def _accepts(self, char: str, index: int) -> bool:
        return (self.others if index else self.first).fullmatch(char) is not None


def _character_of(escape: re.Match[str]) -> str:
    code = int(escape[1], 16)
    return chr(code) if code <= 0x10FFFF else escape[0]


ANY_NAME = NameRule(re.compile(r".", re.DOTALL), re.compile(r".", re.DOTALL), 1 << 16, "any text is accepted")
"""Every name is valid."""
