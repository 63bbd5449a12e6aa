"""Options of a route's targets."""

from typing import Annotated

from pydantic import BaseModel, Field, SerializeAsAny

from mqbridge.config.base import Name, Options, checked_by
from mqbridge.config.options.edit import EditRules
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.config.templates import topic_template_words

TargetTopic = Annotated[Name, checked_by(topic_template_words)]


class Target(Options):
    """Where a route's messages go."""

    cluster: Name = Field(description="The cluster to produce to.")
    topic: TargetTopic = Field(
        default="{topic}",
        description="The target topic: a template in which `{topic}` is the source topic (behind other text the last part "
        "of a full name) and `{name}` a named group of the pattern that matched it.",
        examples=["orders-copy", "persistent://public/default/{topic}"],
    )
    partitions: PartitionRule = Field(default=PartitionRule(), description="Which target partition a message goes to.")
    create: bool = Field(
        default=True,
        description="Create a missing target topic with as many partitions as its source topic has; grow it when that has more.",
    )
    edit: EditRules | None = Field(default=None, description="What is changed in messages on their way to this target.")
    options: SerializeAsAny[BaseModel] | None = Field(
        default=None, description="The system's own settings for producing; see the outbound options below."
    )
