"""Rules of a route: which messages it selects, how it edits them, and to which topic and partition it writes them."""
