"""The configuration of what a route takes, what it changes, and which partitions it chooses."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mqbridge.config.parts import KeyName, MessageTemplate, Name, NameOrPattern, OneOrMore, Part, Pattern, WritableName, wrong


class PartitionRule(Part):
    """Which target partition a message goes to."""

    by: Literal["modulo", "identity", "table", "key", "round_robin"] = Field(
        default="modulo",
        description="`modulo`: a source partition keeps to one target partition, its index modulo their number; "
        "`identity`: its index exactly, for which the target needs as many partitions; `table`: as the table says; "
        "`key`: as the target's own producers place the message's key, without a key as by modulo; "
        "`round_robin`: batch by batch in turn, which keeps no order. A target that grows is used at once: by modulo and by key, "
        "messages may from then on go to another partition than those before them.",
    )
    table: dict[Name, Annotated[int, Field(ge=0)]] = Field(
        default={},
        description="For `by: table`: the target partition's index by the source partition's name or index. A source partition "
        "that is added later and is not in it is not read, and shown as stopped.",
    )
    key: Annotated[tuple[KeyName, ...], OneOrMore] = Field(
        default=("key",),
        min_length=1,
        description="For `by: key`, what stands as the key: `key` (the routing key), `ordering_key`, `keys` (the first index key)"
        " or `property:NAME`; of a list, the first that the message has. Edits come before.",
    )

    @model_validator(mode="after")
    def _belongs_to_the_rule(self) -> Self:
        if (self.by == "table") == (not self.table):
            problem = "`by: table` needs a `table`" if self.by == "table" else f"`by: {self.by}` takes no `table`"
            raise wrong("partitions", problem, "Write by: table and table: {SOURCE: TARGET}")
        if self.by != "key" and "key" in self.model_fields_set and self.key != ("key",):
            raise wrong("partitions", f"`by: {self.by}` takes no `key`", "Write by: key")
        return self


class Condition(Part):
    """What must hold for a text. One of these."""

    present: bool | None = Field(default=None, description="`true`: there is one; `false`: there is none.")
    equals: str | None = Field(default=None, description="It is this text.")
    one_of: frozenset[str] = Field(default=frozenset(), description="It is one of these texts.")
    pattern: Pattern | None = Field(
        default=None, description="This Python regular expression matches the whole text.", examples=["eu-.*"]
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = (self.present is not None, self.equals is not None, bool(self.one_of), self.pattern is not None)
        if sum(given) != 1:
            raise wrong("condition", "needs one of `present`, `equals`, `one_of` and `pattern`, and no two of them")
        return self


class FilterRule(Part):
    """Conditions that must all hold for a message."""

    msg_type: Condition | None = Field(default=None, description="About its type (TubeMQ's `$msgType$`, RocketMQ's tag).")
    key: Condition | None = Field(
        default=None,
        description="About its routing key or any of its index keys. A binary key that is no text is only `present`.",
    )
    properties: dict[Name, Condition] = Field(default={}, description="About any value under each of these names.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.msg_type is None and self.key is None and not self.properties:
            raise wrong("filter", "says nothing: it needs `msg_type`, `key` or `properties`")
        return self


class FilterRules(Part):
    """Which messages a route takes. What it leaves out is acknowledged; what could not be read is never left out."""

    include: Annotated[tuple[FilterRule, ...], OneOrMore] = Field(
        default=(), description="One rule or a list: a message is taken for which one of them holds; none takes all."
    )
    exclude: Annotated[tuple[FilterRule, ...], OneOrMore] = Field(
        default=(), description="One rule or a list: a message is left out for which one of them holds."
    )


class EditRules(Part):
    """What is changed in messages on their way to this target: properties are removed, then renamed, then set."""

    remove: tuple[NameOrPattern, ...] = Field(
        default=(), description="Properties to remove, each a name or a `~PATTERN` that matches whole names."
    )
    rename: dict[Name, WritableName] = Field(default={}, description="New names of properties by their old ones.")
    set: dict[WritableName, MessageTemplate] = Field(
        default={},
        description="Values of properties by name, each a template that reads the message as it came: `{key}`, `{msg_type}`, "
        "`{event_time}` (ms), `{position}`, `{property:NAME}`, `{cluster}`, `{topic}` and `{partition}` of the source, named "
        "groups of its pattern. A template with a word that the message has no value for changes nothing.",
    )
    clear: tuple[Literal["key", "ordering_key", "keys", "msg_type", "event_time", "deliver_at"], ...] = Field(
        default=(), description="Fields to empty; one that is also set here is emptied only where its template says nothing."
    )
    msg_type: MessageTemplate | None = Field(
        default=None, description="The message's type: a template. A `$msgType$` property that said the old one says the new one."
    )
    key: MessageTemplate | None = Field(default=None, description="The routing key: a template.", examples=["{property:user}"])
    ordering_key: MessageTemplate | None = Field(default=None, description="The ordering key: a template.")
    keys: tuple[MessageTemplate, ...] = Field(default=(), description="The index keys: a template for each.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_defaults=True):
            raise wrong("edit", "changes nothing", "Leave it out, or say what to `remove`, `rename` or `set`")
        return self
