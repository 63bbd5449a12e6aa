"""The broker's side of the protocol, for unmodified SDKs, over the services of a listener."""
