"""Senders of encoded messages to named partitions, and the routes that they use."""
