//! The decoders and encoders that are fuzzed: one line each.

use mqbridge_native::Result;
use mqbridge_native::message::Store;

use crate::{fuzz, pulsar, reserved, rocketmq, tubemq};

/// A decoder, with seeds of the same name in `seeds/`.
pub struct Target {
    pub name: &'static str,
    pub decode: fn(&[u8]) -> Result<Store>,
    /// Makes checksums right again, behind which nothing would be tried otherwise.
    pub repair: fn(&mut [u8]),
}

macro_rules! targets {
    ($($name:ident: $decode:expr, $repair:expr;)*) => {
        $(#[test] fn $name() { fuzz(&Target { name: stringify!($name), decode: $decode, repair: $repair }); })*
    };
}

targets! {
    reserved: reserved::decode, |_| ();
    rocketmq_pulls: rocketmq::decode, rocketmq::repair;
    pulsar_entries: pulsar::decode, |_| ();
    pulsar_frames: pulsar::decode_frame, pulsar::repair_frame;
    tubemq_answers: tubemq::decode, |_| ();
}

/// What writes the messages that were read.
pub const ENCODERS: &[fn(&Store)] = &[reserved::encode, rocketmq::encode, pulsar::encode, tubemq::encode];
