"""TLS for connections to servers, shared by all systems: contexts that follow their files, errors that name an option, expiry."""
