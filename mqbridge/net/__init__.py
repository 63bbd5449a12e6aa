"""The only place that touches sockets: an endpoint, dialling, requests that wait for responses, tasks, backoff."""
