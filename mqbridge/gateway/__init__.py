"""Builds the routes from the configuration and keeps them alive."""
