"""The only place that touches sockets: an endpoint, dialling, requests that wait for answers, tasks, backoff."""
