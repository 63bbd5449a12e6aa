"""Programs that write generated pages of the documentation."""
