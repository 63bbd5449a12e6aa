"""An asyncio client of TubeMQ: sessions, the Master, producers, consumers, and the administrators' HTTP API.

State belongs to a client id and never to a connection, so connections are made when they are needed and replaced without a
word; Masters and Brokers may restart at any time.
"""
