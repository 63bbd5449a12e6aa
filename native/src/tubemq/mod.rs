//! TubeMQ: packs into messages, messages into send requests.

pub mod decode;
pub mod encode;
pub mod escapes;
pub mod pack;
