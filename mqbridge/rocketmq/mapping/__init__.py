"""From a message to bytes and back: the field table, the property block, the envelopes."""
