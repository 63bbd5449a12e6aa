"""Every metric as a table, how each is read from a running gateway, and the documentation page that is generated from it."""
