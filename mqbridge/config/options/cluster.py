"""Options of clusters. In the file, the options of a system are next to `system`; the system's adapter declares them."""

from pydantic import BaseModel, Field, SerializeAsAny

from mqbridge.config.base import Name, Options


class ClusterConfig(Options):
    """A cluster: its system, and the settings of that system."""

    system: Name = Field(description="The system of the cluster: the name of an installed adapter.")
    settings: SerializeAsAny[BaseModel] = Field(description="All keys except `system`, validated by the adapter's model.")
