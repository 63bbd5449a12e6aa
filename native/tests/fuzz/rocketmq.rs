//! RocketMQ: the bytes of a pull, and the requests of what is in it.

use mqbridge_native::Result;
use mqbridge_native::message::{Source, Store};
use mqbridge_native::rocketmq::batch_builder::write_batch;
use mqbridge_native::rocketmq::decode;
use mqbridge_native::rocketmq::encode::{IDS, Limits, Request, Reserve, encode as encode_requests};
use mqbridge_native::rocketmq::pulled::{self, Pull};

pub fn decode(data: &[u8]) -> Result<Store> {
    let pull = |first, next, tags: &[&str]| Pull {
        body: Source::Owned(data.to_vec()),
        first,
        next,
        tags: tags.iter().map(|tag| tag.to_string()).collect(),
    };
    let _ = pulled::count(data);
    let _ = decode::count(pull(0, 5, &[]), &mut unpack);
    let _ = decode::decode(vec![pull(1, 1 << 40, &["t"]), pull(0, 9, &["a", "TagA"])], &mut unpack);
    decode::decode(vec![pull(i64::MIN, i64::MAX, &[])], &mut unpack)
}

/// In place of decompression, which is not this crate's: the bytes themselves, but for one codec that never succeeds.
fn unpack(codec: u32, data: &[u8]) -> Result<std::result::Result<Source, String>> {
    Ok(if codec == 0x100 { Err("its body is no LZ4".to_string()) } else { Ok(Source::Owned(data.to_vec())) })
}

/// The checksums of bodies, as far as the records follow each other.
pub fn repair(data: &mut [u8]) {
    let number = |data: &[u8], at: usize| u32::from_be_bytes(data[at..at + 4].try_into().unwrap()) as usize;
    let mut at = 0;
    while data.len() >= at + 120 {
        let flags = number(data, at + 36);
        let start = at + 48 + 8 + 8 + 8 + 16 + if flags & 16 != 0 { 12 } else { 0 } + if flags & 32 != 0 { 12 } else { 0 };
        let end = start + number(data, start - 4);
        if end > data.len() {
            return;
        }
        let sum = crc32fast::hash(&data[start..end]) & 0x7FFF_FFFF;
        data[at + 8..at + 12].copy_from_slice(&sum.to_be_bytes());
        at += number(data, at).max(1);
    }
}

pub fn encode(store: &Store) {
    let mut limits = Limits {
        max_bytes: 2000,
        max_messages: 3,
        max_message_bytes: 4 << 20,
        max_delay_ms: 1 << 30,
        levels: vec![(1000, 1), (5000, 2), (3_600_000, 17)],
    };
    let mut reserve = || Ok((b"7F0000010000".to_vec(), 0x10000 - IDS / 2));
    let _ = encode_all(store, None, &limits, None);
    limits.max_message_bytes = 300;
    let _ = encode_all(store, Some(b"c|t|0|"), &limits, Some(&mut reserve));
}

fn encode_all(store: &Store, origin: Option<&[u8]>, limits: &Limits, reserve: Option<&mut Reserve>) -> Result<()> {
    let made = encode_requests(store.messages(), origin, limits, 1_700_000_000_000, reserve.map(|reserve| reserve as _))?;
    for request in &made.requests {
        match request {
            Request::Batch(batch) => {
                let mut out = vec![0; batch.size];
                write_batch(&made.elements[batch.elements.clone()], &made.strings, &mut out);
            }
            Request::Alone(alone) => assert!(std::str::from_utf8(&made.strings[alone.properties.clone()]).is_ok()),
        }
    }
    Ok(())
}
