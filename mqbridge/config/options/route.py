"""Options of routes."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from mqbridge.config.base import Name, OneOrMore, Options, option_error
from mqbridge.config.options.delivery import Delivery
from mqbridge.config.options.filter import FilterRules
from mqbridge.config.options.source import Source
from mqbridge.config.options.target import Target


class Route(Options):
    """A route from one source to one or more targets."""

    name: Name = Field(description="The route's name in metrics, logs and checkpoints; it must be unique.")
    source: Source = Field(alias="from", description="The source of the messages.")
    filter: FilterRules = Field(default=FilterRules(), description="The rules that select messages.")
    targets: Annotated[tuple[Target, ...], OneOrMore] = Field(
        alias="to", min_length=1, description="The target, or a list of targets; each gets all messages of the route."
    )
    delivery: Delivery = Field(default=Delivery(), description="Delivery guarantees and limits of the route.")

    @property
    def clusters(self) -> frozenset[str]:
        """Names of all clusters that the route uses."""
        dead_letter = self.delivery.dead_letter
        names = {self.source.cluster, *(target.cluster for target in self.targets)}
        return frozenset(names if dead_letter is None else names | {dead_letter.cluster})

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.delivery.order == "partition" and any(target.partitions.by == "round_robin" for target in self.targets):
            raise option_error(
                "order",
                "`delivery.order: partition` is impossible with `partitions.by: round_robin`: it mixes the order",
                "Set delivery.order: none, or choose another rule",
            )
        return self
