"""Options of routes."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from mqbridge.config.base import Name, OneOrMore, Options, invalid
from mqbridge.config.options.delivery import Delivery
from mqbridge.config.options.filter import FilterRules
from mqbridge.config.options.source import Source
from mqbridge.config.options.target import Target


class Route(Options):
    """From one cluster to one or more others."""

    name: Name = Field(description="The route's name in metrics, logs and checkpoints; unique.")
    source: Source = Field(alias="from", description="Where the messages come from.")
    filter: FilterRules = Field(default=FilterRules(), description="Which of them the route takes.")
    targets: Annotated[tuple[Target, ...], OneOrMore] = Field(
        alias="to", min_length=1, description="Where the messages go: one target or a list, each of which must store them."
    )
    delivery: Delivery = Field(default=Delivery(), description="What the route promises, and within which limits.")

    @property
    def clusters(self) -> frozenset[str]:
        """The names of all clusters that the route uses."""
        letters = self.delivery.dead_letter
        names = {self.source.cluster, *(target.cluster for target in self.targets)}
        return frozenset(names if letters is None else names | {letters.cluster})

    @model_validator(mode="after")
    def _order_can_be_kept(self) -> Self:
        if self.delivery.order == "partition" and any(target.partitions.by == "round_robin" for target in self.targets):
            raise invalid(
                "order",
                "order by partition cannot be kept with `partitions.by: round_robin`",
                "Set delivery.order: none, or another rule",
            )
        return self
