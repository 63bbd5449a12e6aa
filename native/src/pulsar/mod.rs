//! Entries of Pulsar: batches of messages with a metadata each.

pub mod decode;
pub mod delivered;
pub mod encode;
pub mod metadata;
