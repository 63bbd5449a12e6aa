"""The bridge that `mqbridge quickstart` demonstrates."""
