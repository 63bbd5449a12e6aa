//! Fuzzes the decoder of RocketMQ's pulls, and the encoder of send requests.

use mqbridge_native::Result;
use mqbridge_native::message::{Source, Store};
use mqbridge_native::rocketmq::batch_builder::write_batch;
use mqbridge_native::rocketmq::decode;
use mqbridge_native::rocketmq::encode::{IDS_PER_RESERVATION, Limits, Request, ReserveIds, encode as encode_requests};
use mqbridge_native::rocketmq::pulled::{self, Pull};

/// Decodes the records of a pull, with several offsets and tags.
pub fn decode(data: &[u8]) -> Result<Store> {
    let pull = |first, next, tags: &[&str]| Pull {
        body: Source::Owned(data.to_vec()),
        first,
        next,
        tags: tags.iter().map(|tag| tag.to_string()).collect(),
    };
    let _ = pulled::count_stored(data);
    let _ = decode::count(pull(0, 5, &[]), &mut decompress);
    let _ = decode::decode_pulls(vec![pull(1, 1 << 40, &["t"]), pull(0, 9, &["a", "TagA"])], &mut decompress);
    decode::decode_pulls(vec![pull(i64::MIN, i64::MAX, &[])], &mut decompress)
}

/// Stands for the decompression, which Python provides: it returns the bytes unchanged, and an error for one codec.
fn decompress(codec: u32, data: &[u8]) -> Result<std::result::Result<Source, String>> {
    Ok(if codec == 0x100 { Err("its body is no LZ4".to_string()) } else { Ok(Source::Owned(data.to_vec())) })
}

/// Corrects the checksums of the bodies, up to the first record whose sizes are damaged.
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

/// Encodes messages with two sets of limits.
pub fn encode(store: &Store) {
    let mut limits = Limits {
        max_bytes: 2000,
        max_messages: 3,
        max_message_bytes: 4 << 20,
        max_delay_ms: 1 << 30,
        levels: vec![(1000, 1), (5000, 2), (3_600_000, 17)],
    };
    let mut reserve_ids = || Ok((b"7F0000010000".to_vec(), 0x10000 - IDS_PER_RESERVATION / 2));
    let _ = encode_all(store, None, &limits, None);
    limits.max_message_bytes = 300;
    let _ = encode_all(store, Some(b"c|t|0|"), &limits, Some(&mut reserve_ids));
}

/// Encodes the messages, and writes the bodies of all batches.
fn encode_all(store: &Store, origin: Option<&[u8]>, limits: &Limits, reserve_ids: Option<&mut ReserveIds>) -> Result<()> {
    let encoded =
        encode_requests(store.messages(), origin, limits, 1_700_000_000_000, reserve_ids.map(|reserve_ids| reserve_ids as _))?;
    for request in &encoded.requests {
        match request {
            Request::Batch(batch) => {
                let mut out = vec![0; batch.size];
                write_batch(&encoded.elements[batch.elements.clone()], &encoded.property_strings, &mut out);
            }
            Request::Single(single) => assert!(std::str::from_utf8(&encoded.property_strings[single.properties.clone()]).is_ok()),
        }
    }
    Ok(())
}
