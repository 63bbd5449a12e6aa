"""Reads requests: the parameters of the query and of a form, each with its limit.

Parameters may be in both; the first one of a name counts, and those of the query come first, as at a Master and a Broker.
"""

import json
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mqbridge.tubemq.server.web.answers import WebRefusal

MAX_BODY_BYTES = 256 << 10
"""Maximum size of a form: it may name many topics, or the offsets of many partitions."""
MAX_PARAMETERS = 200
"""Maximum number of parameters."""
MAX_NAMES = 1000
"""Maximum number of names, or of offsets, in one parameter."""
MAX_NAME_CHARS = 1024
"""Maximum length of a name."""
MAX_DIGITS = 19
"""Maximum length of a number."""
MAX_INT64 = (1 << 63) - 1


class Parameters:
    """The parameters of a request. Methods raise WebRefusal with the text of a Master or a Broker."""

    def __init__(self, request: Request, pairs: list[tuple[str, str]]) -> None:
        self.request = request
        """The request: it says which address the client has reached."""
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name, value.strip())

    def text(self, name: str) -> str:
        """Return a parameter; empty if there is none."""
        return self._values.get(name, "")

    def required(self, name: str) -> str:
        """Return a parameter that the method needs."""
        if not (value := self.text(name)):
            raise WebRefusal(f"Parameter {name} is missing or value is blank!")
        if len(value) > MAX_NAME_CHARS:
            raise WebRefusal(f"the value of {name} has more than {MAX_NAME_CHARS} characters")
        return value

    def names(self, name: str, *, required: bool = False) -> list[str]:
        """Return the names in a parameter, in the order in which they come; they are separated by commas."""
        value = self.text(name)
        names = list(dict.fromkeys(stripped for each in value.split(",") if (stripped := each.strip())))
        if required and not names:
            raise WebRefusal(f"Parameter {name} is missing or value is blank!")
        if len(names) > MAX_NAMES or any(len(each) > MAX_NAME_CHARS for each in names):
            raise WebRefusal(f"{name} may have {MAX_NAMES} names, with {MAX_NAME_CHARS} characters each")
        return names

    def number(self, name: str, *, default: int | None = None, lowest: int = 0) -> int:
        """Return a number; without a default, the method needs it."""
        if not (value := self.text(name)):
            if default is None:
                raise WebRefusal(f"Parameter {name} is missing or value is blank!")
            return default
        number = _number(value)
        if number is None:
            raise WebRefusal(f"illegal value for {name}, value must only contain numbers")
        if number < lowest:
            raise WebRefusal(f"Parameter {name} value must >= {lowest}")
        return number

    def numbers(self, name: str, *, required: bool = False) -> list[int]:
        """Return the numbers in a parameter, which are separated by commas."""
        numbers = [_number(each) for each in self.names(name, required=required)]
        if None in numbers:
            raise WebRefusal(f"illegal value for {name}, value must only contain numbers")
        return [number for number in numbers if number is not None]

    def flag(self, name: str) -> bool:
        """Return True if a parameter is `true`."""
        return self.text(name).lower() == "true"

    def offsets(self, name: str) -> dict[str, int]:
        """Return the offsets in a parameter, a JSON object, by their keys."""
        if not (value := self.text(name)):
            raise WebRefusal(f"Parameter {name} is missing or value is blank!")
        try:
            found = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise WebRefusal(f"Parameter {name} value parse failure, error is {error}!") from error
        if not isinstance(found, dict) or not all(type(each) is int for each in found.values()):
            raise WebRefusal(f"Parameter {name} value parse failure, error is that it has no numbers by keys!")
        if len(found) > MAX_NAMES:
            raise WebRefusal(f"{name} may have {MAX_NAMES} offsets")
        return found


def _number(text: str) -> int | None:
    """Return a whole number of 64 bits; None for any other text."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > MAX_DIGITS:
        return None
    number = int(text)
    return number if abs(number) <= MAX_INT64 else None


async def read_parameters(request: Request) -> Parameters:
    """Return the parameters of a request. Raises HTTPException if there are too many, WebRefusal if they cannot be read."""
    body = b""
    if request.method == "POST":
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form has more than {MAX_BODY_BYTES} bytes")
    pairs = []
    try:
        for text in (request.url.query, body.decode("latin-1")):
            pairs += parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise WebRefusal(f"the parameters cannot be read: {error}") from error
    return Parameters(request, pairs)
