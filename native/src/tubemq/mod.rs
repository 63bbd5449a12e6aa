//! TubeMQ: packs into messages, messages into send requests, and for servers, packs from units. A pack is the messages of a Broker's response to a get.

pub mod decode;
pub mod encode;
pub mod escapes;
pub mod pack;
pub mod served_pack;
