"""TLS for connections to servers: contexts that follow changed files, errors that name an option, expiry of certificates."""
