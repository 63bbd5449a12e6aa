"""Message <-> TubeMQ bytes: the field table, the attribute string, send requests and stored messages."""
