"""Routes of a gateway: what is planned, opened, read, written and closed for each."""
