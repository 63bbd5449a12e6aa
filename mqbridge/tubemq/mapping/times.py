"""`$msgTime$`: minutes as twelve digits, in the cluster's zone. All memos here are bounded like every other."""

from datetime import datetime, tzinfo

from mqbridge.mapping.bounded_cache import remember

DIGITS = 12


class Minutes(dict[bytes, int | None]):
    """Times (ms since the epoch) by the values of `$msgTime$`, in one zone; None for what is no time."""

    def __init__(self, zone: tzinfo) -> None:
        super().__init__()
        self._zone = zone

    def __missing__(self, value: bytes) -> int | None:
        return remember(self, value, self._read(value.decode()), len(value))

    def _read(self, text: str) -> int | None:
        if len(text) != DIGITS or not (text.isascii() and text.isdigit()):
            return None
        try:
            # strptime would take "2026112 3 4" apart as well; fixed places do not.
            parts = (int(text[:4]), int(text[4:6]), int(text[6:8]), int(text[8:10]), int(text[10:]))
            return int(datetime(*parts, tzinfo=self._zone).timestamp()) * 1000
        except (ValueError, OverflowError):
            return None


class MinuteTexts(dict[int, str | None]):
    """`$msgTime$` by seconds since the epoch, in one zone; None for times that it cannot say."""

    def __init__(self, zone: tzinfo) -> None:
        super().__init__()
        self._zone = zone

    def __missing__(self, second: int) -> str | None:
        return remember(self, second, self._write(second))

    def _write(self, second: int) -> str | None:
        try:
            return datetime.fromtimestamp(second, self._zone).strftime("%Y%m%d%H%M").zfill(DIGITS)
        except (ValueError, OverflowError, OSError):
            return None


_minutes: dict[tzinfo, Minutes] = {}
_texts: dict[tzinfo, MinuteTexts] = {}


def minutes_of(zone: tzinfo) -> Minutes:
    """The memo of a zone, for reading."""
    return _minutes.get(zone) or _minutes.setdefault(zone, Minutes(zone))


def texts_of(zone: tzinfo) -> MinuteTexts:
    """The memo of a zone, for writing."""
    return _texts.get(zone) or _texts.setdefault(zone, MinuteTexts(zone))
