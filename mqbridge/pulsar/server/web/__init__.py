"""The web side of a Pulsar listener: HTTP lookup, and the part of the admin interface that its cluster can answer."""
