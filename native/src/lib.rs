//! The compiled transcoder of mqbridge.
//!
//! Decoders read a native batch (RocketMQ records, Pulsar entries, a TubeMQ pack) into a [`message::Store`]: slices of the bytes
//! that arrived, no object per message or property. Encoders write stores as the batches of another system. The plain Python
//! under `mqbridge/*/mapping` is the specification: what is written here has the same names there, and gives the same bytes or
//! the same error. What this module leaves to the plain code is an [`Error::Unsupported`].

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
    /// The bytes cannot be read: `RemoteProtocolError` in Python, with this text.
    Protocol(String),
    /// Only the plain code can say what becomes of this batch: a number beyond 64 bits, for example.
    Unsupported,
}

pub type Result<T> = std::result::Result<T, Error>;
