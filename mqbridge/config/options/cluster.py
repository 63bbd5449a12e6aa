"""Options of clusters. The options of a system are beside `system` in the file and are declared by the system's adapter."""

from pydantic import BaseModel, Field, SerializeAsAny

from mqbridge.config.base import Name, Options


class ClusterConfig(Options):
    """A cluster: its system, and that system's own settings beside it."""

    system: Name = Field(description="The system of the cluster: the name of an installed adapter.")
    settings: SerializeAsAny[BaseModel] = Field(description="The other keys, validated by the adapter's model.")
