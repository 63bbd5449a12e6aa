"""The only package that uses sockets: endpoints, connecting, pending requests, tasks and backoff."""
