"""Options of a route's targets."""

from typing import Annotated, Self

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from mqbridge.config.base import Name, Options, checked_by, option_error
from mqbridge.config.options.create_rule import Create, CreateRule
from mqbridge.config.options.edit import EditRules
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.config.options.unread import Unread
from mqbridge.config.templates import topic_template_words

TargetTopic = Annotated[Name, checked_by(topic_template_words)]
"""The type of a target's option `topic`: a topic template."""


class Target(Options):
    """A target of a route."""

    cluster: Name = Field(description="The cluster to produce to.")
    topic: TargetTopic = Field(
        default="{topic}",
        description="The target topic: a template in which `{topic}` is the source topic (after other text, as in "
        "`copy-{topic}`, only the last part of a full name) and `{name}` is a named group of the pattern that matched the source "
        "topic.",
        examples=["orders-copy", "persistent://public/default/{topic}"],
    )
    partitions: PartitionRule = Field(default=PartitionRule(), description="The rule that chooses the target partition.")
    create: Create = Field(
        default=True,
        description="Create a missing target topic with as many partitions as its source topic has, and grow it when the source "
        "topic grows. `{partitions: N, subscriptions: [NAME]}` sets the number of partitions, and the subscriptions to create "
        "with the topic. `false`: the topic must exist.",
    )
    unread: Unread = "kept"
    edit: EditRules | None = Field(default=None, description="Edits of the messages that are written to this target.")
    options: SerializeAsAny[BaseModel] | None = Field(
        default=None, description="The system's own settings for producing; see the outbound options below."
    )

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The subscriptions that are created with the topic."""
        return self.create.subscriptions if isinstance(self.create, CreateRule) else ()

    @model_validator(mode="after")
    def _check_table_fits(self) -> Self:
        count = self.create.partitions if isinstance(self.create, CreateRule) else None
        largest = max(self.partitions.table.values(), default=0)
        if count is not None and count <= largest:
            problem = f"`create.partitions: {count}` is too few for `partitions.table`, which names partition {largest}"
            raise option_error("create", problem, f"Write partitions: {largest + 1} or more")
        return self
