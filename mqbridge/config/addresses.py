"""The option `addresses` of a cluster: where the addresses that its servers advertise can be reached."""

from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, ValidationError, WithJsonSchema
from pydantic_core import InitErrorDetails, PydanticCustomError

from mqbridge.config.base import option_error
from mqbridge.net.addresses import AddressMap, AddressMapError

ADDRESSES_DESCRIPTION = (
    "Where the servers can be reached, if not at the addresses that they advertise (NAT, Docker, port-forward): a mapping of "
    "advertised to reachable addresses, both `host:port`, or both `host` for all ports. It applies to every connection, also to "
    "configured addresses. Certificates are verified for the advertised name. In a URL: `addresses=ADVERTISED=REACHABLE,…`."
)


def _read(value: Any) -> AddressMap:
    """Return the map of a mapping or of a text with commas. Raises PydanticCustomError, or ValidationError for one entry."""
    if isinstance(value, AddressMap):
        return value
    entries = _split(value) if isinstance(value, str) else value
    if not isinstance(entries, dict):
        raise option_error("addresses", "must be a mapping of advertised to reachable addresses")
    for advertised, reachable in entries.items():
        if not isinstance(advertised, str) or not isinstance(reachable, str):
            raise _entry_error(advertised, f"must be a text, host:port or host, not {reachable!r}")
    try:
        return AddressMap(entries)
    except AddressMapError as error:
        raise _entry_error(error.advertised, str(error)) from None


def _entry_error(advertised: Any, problem: str) -> ValidationError:
    """Return an error at one entry, so that it is reported with the entry's line."""
    detail = InitErrorDetails(type=_custom(problem), loc=(str(advertised),), input=None)
    return ValidationError.from_exception_data("addresses", [detail])


def _custom(problem: str) -> PydanticCustomError:
    return option_error("addresses", problem, "Write ADVERTISED: REACHABLE, as in `broker-1:6650: localhost:16650`")


def _split(text: str) -> dict[str, str]:
    """Split `advertised=reachable,…`. Raises PydanticCustomError."""
    entries: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        advertised, separator, reachable = part.partition("=")
        if not separator:
            raise option_error("addresses", f"{part!r} is not ADVERTISED=REACHABLE")
        if advertised in entries:
            raise option_error("addresses", f"{advertised!r} is there twice")
        entries[advertised] = reachable
    return entries


Addresses = Annotated[
    AddressMap,
    PlainValidator(_read),
    PlainSerializer(lambda addresses: addresses.entries, return_type=dict[str, str]),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": "string"}, "examples": [{"broker-1:6650": "localhost:16650"}]}
    ),
]
"""The type of `addresses`."""
