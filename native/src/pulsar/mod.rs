//! Decodes Pulsar entries to messages, and encodes messages to entries. An entry is a batch of messages, or one message.
//! `delivered` parses the frames in which a broker delivers entries; `frames` encodes such frames.
//! `sent` parses the frames in which a producer sends entries, and encodes their receipts.

pub mod decode;
pub mod delivered;
pub mod encode;
pub mod frames;
pub mod metadata;
pub mod sent;
