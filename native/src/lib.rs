//! The compiled transcoder of mqbridge.
//!
//! Decoders read a batch of a system (RocketMQ records, Pulsar entries, a TubeMQ pack) into a [`message::Store`], which keeps the
//! received bytes and refers to parts of them, without an object per message or property. Encoders write the messages of stores
//! as batches of a system. The specification is the plain code, the Python under `mqbridge/*/mapping`: it uses the same names,
//! and for the same input both give the same bytes or the same error. Input that only the plain code can handle is an
//! [`Error::Unsupported`].

pub mod message;
pub mod protobuf;
pub mod reserved;
pub mod text;

pub mod pulsar;
pub mod rocketmq;
pub mod tubemq;

#[cfg(feature = "python")]
mod python;

/// Why a batch was not decoded or encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The bytes are malformed. Python raises `RemoteProtocolError` with this text.
    Protocol(String),
    /// Only the plain code can decode or encode this batch, because it has a number beyond 64 bits, for example.
    Unsupported,
}

pub type Result<T> = std::result::Result<T, Error>;
