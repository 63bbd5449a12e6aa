"""Server for TubeMQ clients: a Master and a Broker."""
