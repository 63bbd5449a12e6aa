"""Rules of a route: which messages it takes, how it edits them, and to which topic and partition they go."""
