"""Every metric as a table, how each is read from a running gateway, and the page of documentation that is written from it."""
