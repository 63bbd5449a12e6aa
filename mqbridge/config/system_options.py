"""Validates the system-specific options by the models of the adapters.

An adapter's `cluster_model` validates the options of a cluster. Its `inbound_options` and `outbound_options` validate the
`options` of a route's source and targets. Invalid options are reported and replaced by empty `Options` (in a cluster) or
None (in a source or target), so that the later passes can check the rest of the file.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from mqbridge.adapter.registry import Adapter
from mqbridge.config.base import Options
from mqbridge.config.document import Document, KeyPath
from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.problems import nearest
from mqbridge.config.validation_errors import explain
from mqbridge.errors import ConfigError


class SystemOptions:
    """Replaces system-specific options by validated models: `with_models` does this, and adds the problems to `errors`."""

    def __init__(self, document: Document, adapters: Mapping[str, Adapter]) -> None:
        self._document = document
        self._adapters = adapters
        self._system_of: dict[str, str] = {}
        """System by cluster name; a cluster whose system is not installed is left out."""
        self.errors: list[ConfigError] = []

    def with_models(self) -> Any:
        """Return the document's data with validated models in place of the system-specific options.

        Values of a wrong type stay as they are: the model `Config` reports them.
        """
        data = self._document.data
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if isinstance(data.get("clusters"), dict):
            data["clusters"] = {name: self._cluster(name, body) for name, body in data["clusters"].items()}
        if isinstance(data.get("routes"), list):
            data["routes"] = [self._route(route, ("routes", index)) for index, route in enumerate(data["routes"])]
        return data

    def _cluster(self, name: str, body: Any) -> Any:
        """Return the cluster with a model of its options; with a placeholder if the system or an option is invalid."""
        if isinstance(body, ClusterConfig):
            self._system_of[name] = body.system
        if not isinstance(body, dict):
            return body
        path: KeyPath = ("clusters", name)
        system = body.get("system")
        adapter = self._adapters.get(system) if isinstance(system, str) else None
        if adapter is None:
            self.errors.append(self._system_error(path, system))
            return ClusterConfig.model_construct(system="", settings=Options())
        self._system_of[name] = adapter.system
        own_options = {key: value for key, value in body.items() if key != "system"}
        settings = self._validate(adapter.cluster_model, own_options, path)
        return ClusterConfig.model_construct(system=adapter.system, settings=settings or Options())

    def _system_error(self, path: KeyPath, system: Any) -> ConfigError:
        """Make the error for a cluster whose `system` is missing or not installed."""
        installed = f"Installed systems: {', '.join(sorted(self._adapters))}"
        if system is None:
            return self._document.error((*path, "system"), "is missing", installed)
        return self._document.error(
            (*path, "system"), f"{system!r} is not an installed system", nearest(system, self._adapters) or installed
        )

    def _route(self, route: Any, path: KeyPath) -> Any:
        """Return the route with models of the options of its source and targets."""
        if not isinstance(route, dict):
            return route
        route = dict(route)
        if "from" in route:
            route["from"] = self._endpoint(route["from"], (*path, "from"), "inbound_options")
        targets = route.get("to")
        if isinstance(targets, list):
            route["to"] = [
                self._endpoint(target, (*path, "to", index), "outbound_options") for index, target in enumerate(targets)
            ]
        elif targets is not None:
            route["to"] = self._endpoint(targets, (*path, "to"), "outbound_options")
        return route

    def _endpoint(self, endpoint: Any, path: KeyPath, model_attribute: str) -> Any:
        """Return the source or target with validated `options`; `model_attribute` is the adapter's attribute with their model."""
        if not isinstance(endpoint, dict):
            return endpoint
        cluster, options = endpoint.get("cluster"), endpoint.get("options")
        if not isinstance(options, (dict, type(None))):
            self.errors.append(self._document.error((*path, "options"), "must be a mapping of the system's own settings"))
            return endpoint | {"options": None}
        system = self._system_of.get(cluster) if isinstance(cluster, str) else None
        if system is None:  # `_cluster` reports an invalid cluster, a later pass a missing one
            return endpoint | {"options": None}
        model = getattr(self._adapters[system], model_attribute)
        return endpoint | {"options": self._validate(model, options or {}, (*path, "options"))}

    def _validate(self, model: type[BaseModel], data: Mapping[str, Any], path: KeyPath) -> BaseModel | None:
        """Validate the options at this path. Reports the problems and returns None if they are invalid."""
        try:
            return model.model_validate(data)
        except ValidationError as error:
            self.errors.extend(explain(self._document, error, model.model_json_schema(), path))
            return None
