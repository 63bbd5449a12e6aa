"""TLS toward servers, once for all systems: contexts that follow their files, errors that name an option, expiry."""
