"""Administration of topics and groups over the remoting protocol, and names and permissions that it checks."""
