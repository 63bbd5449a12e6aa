"""A Pulsar broker's side of the protocols, for a listener: the data is in the cluster behind the listener's services."""
