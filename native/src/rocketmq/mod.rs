//! RocketMQ: records of the commit log into messages, messages into send requests; for servers, sends into units, units into records.
//! See `mqbridge/rocketmq/mapping`.

pub mod batch;
pub mod batch_builder;
pub mod broker_order;
pub mod decode;
pub mod encode;
pub mod escapes;
pub mod names;
pub mod neutral_record;
pub mod pulled;
pub mod read_block;
pub mod record;
pub mod served_records;
pub mod write_block;

/// The bytes of a property string that end a property's name and its value.
pub const NAME_END: u8 = 1;
pub const VALUE_END: u8 = 2;
/// The body written for a missing or empty payload, because brokers refuse an empty body.
pub const PLACEHOLDER: &[u8] = b"\0";

// Names of properties that keep what other fields cannot hold: an empty payload, the order of the properties, the flag of a
// record, and that its sharding key equals its first index key. See `mqbridge/rocketmq/mapping/table.py`.
pub const EMPTY: &[u8] = b"mqbridge.empty";
pub const ORDER: &[u8] = b"mqbridge.order";
pub const FLAG: &[u8] = b"mqbridge.rocketmq.flag";
pub const SHARDED: &[u8] = b"mqbridge.rocketmq.sharded";
