"""A RocketMQ client for asyncio: connections, name servers, routes, producers, consumers, transactions and administration."""
