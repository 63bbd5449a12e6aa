"""Options that several commands share, the parsing of their values, and shell completion."""
