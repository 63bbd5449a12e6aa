"""A Pulsar client for asyncio: connections, lookups, producers, consumers, and the admin REST interface."""
