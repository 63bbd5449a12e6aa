"""Options of clusters. Those of their systems stand beside `system` in the file and are declared by the systems' adapters."""

from pydantic import BaseModel, Field, SerializeAsAny

from mqbridge.config.base import Name, Options


class ClusterConfig(Options):
    """A cluster: the system that it runs, and that system's own settings beside it."""

    system: Name = Field(description="The system that the cluster runs: the name of an installed adapter.")
    settings: SerializeAsAny[BaseModel] = Field(description="The other keys, as the adapter's model read them.")
