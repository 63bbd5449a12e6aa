"""Connections to brokers, authentication, lookups, and what is asked over them: schemas and topic lists."""
