"""Options for choosing the target partition."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mqbridge.config.base import Name, OneOrMore, Options, checked_by, option_error
from mqbridge.errors import ConfigError

By = Literal["modulo", "identity", "table", "key", "round_robin"]
"""The rules; see the description of `by`."""

KEY_FIELDS = ("key", "ordering_key", "keys")
"""The fields of a message that can be its key for `by: key`."""
KEY_PROPERTY_PREFIX = "property:"
"""Prefix of `property:NAME`, which uses the value of a property as the key."""


def check_key(name: str) -> None:
    """Raise ConfigError unless `name` is a field or a property that can be used as a message's key."""
    if name not in KEY_FIELDS and not (name.startswith(KEY_PROPERTY_PREFIX) and len(name) > len(KEY_PROPERTY_PREFIX)):
        raise ConfigError(
            f"{name!r} cannot be used as the key", hint=f"Write {', '.join(KEY_FIELDS)} or {KEY_PROPERTY_PREFIX}NAME"
        )


KeyName = Annotated[Name, checked_by(check_key)]
"""The type of an item of the option `key`: a field or a property."""


class PartitionRule(Options):
    """The rule that chooses the target partition of a message."""

    by: By = Field(
        default="modulo",
        description="`modulo`: each source partition is written to one target partition, its number modulo the number of target "
        "partitions; the number is that of Pulsar and the log, on RocketMQ and TubeMQ a checksum of the broker's name, 0 for "
        "`broker-a` and 1, plus the number of the queue or partition; `identity`: to the target partition with the same index, "
        "so the target needs at least "
        "as many partitions as the source; `table`: to the target partition in `table`; `key`: to the partition that the "
        "target's own producers choose for the message's key (a message without a key as with `modulo`); `round_robin`: each "
        "batch to the next partition, without any order. New partitions of a target are used at once: with `modulo` and `key`, "
        "later messages may then be written to another partition than earlier ones. Indexes count by number first and then by "
        "broker; over several brokers they need the cluster's option `brokers`, or `state`.",
    )
    table: dict[Name, Annotated[int, Field(ge=0)]] = Field(
        default={},
        description="For `by: table`: the target partition's index by the source partition's name, or by its index as in "
        "`identity`. A source partition that is added later and is not in the table is not read, and is shown as stopped.",
    )
    key: Annotated[tuple[KeyName, ...], OneOrMore] = Field(
        default=("key",),
        min_length=1,
        description="For `by: key`: the key to use, `key` (the routing key), `ordering_key`, `keys` (the first index key)"
        " or `property:NAME`; from a list, the first one that the message has. The target's `edit` is applied first.",
    )

    @model_validator(mode="after")
    def _check_keys_of_rule(self) -> Self:
        if (self.by == "table") != bool(self.table):
            problem = "`by: table` needs a `table`" if self.by == "table" else f"`by: {self.by}` takes no `table`"
            raise option_error("partitions", problem, "Write by: table and table: {SOURCE: TARGET}")
        if self.by != "key" and "key" in self.model_fields_set and self.key != ("key",):
            raise option_error("partitions", f"`by: {self.by}` takes no `key`", "Write by: key")
        return self
