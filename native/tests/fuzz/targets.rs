//! The list of the decoders and encoders that are fuzzed.

use mqbridge_native::Result;
use mqbridge_native::message::Store;

use crate::{fuzz, pulsar, reserved, rocketmq, tubemq};

/// A decoder to fuzz. Its seeds are in the file of the same name in `seeds/`.
pub struct Target {
    pub name: &'static str,
    pub decode: fn(&[u8]) -> Result<Store>,
    /// Corrects the checksums in a damaged input, because otherwise decoders would reject it at once.
    pub repair: fn(&mut [u8]),
}

/// Makes a test for each decoder.
macro_rules! targets {
    ($($name:ident: $decode:expr, $repair:expr;)*) => {
        $(#[test] fn $name() { fuzz(&Target { name: stringify!($name), decode: $decode, repair: $repair }); })*
    };
}

targets! {
    reserved: reserved::decode, |_| ();
    rocketmq_pulls: rocketmq::decode, rocketmq::repair;
    rocketmq_batches: rocketmq::decode_batch, |_| ();
    pulsar_entries: pulsar::decode, |_| ();
    pulsar_frames: pulsar::decode_frame, pulsar::repair_frame;
    pulsar_sends: pulsar::decode_send, pulsar::repair_frame;
    tubemq_answers: tubemq::decode, |_| ();
}

/// Each of these encodes all messages of a store.
pub const ENCODERS: &[fn(&Store)] = &[reserved::encode, rocketmq::encode, pulsar::encode, tubemq::encode];
