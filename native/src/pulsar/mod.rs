//! Pulsar: entries into messages, messages into entries. An entry is a batch of messages, or one message.

pub mod decode;
pub mod delivered;
pub mod encode;
pub mod metadata;
