//! Entries of Pulsar: batches of messages with a metadata each.
