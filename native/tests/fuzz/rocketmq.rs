//! Fuzzes the decoder of RocketMQ's pulls, the encoder of send requests, and what a server makes of batches and of units.

use mqbridge_native::Result;
use mqbridge_native::message::{Source, Store};
use mqbridge_native::rocketmq::batch::split_batch;
use mqbridge_native::rocketmq::batch_builder::write_batch;
use mqbridge_native::rocketmq::decode;
use mqbridge_native::rocketmq::encode::{IDS_PER_RESERVATION, Limits, Request, ReserveIds, encode as encode_requests};
use mqbridge_native::rocketmq::neutral_record::write_neutral;
use mqbridge_native::rocketmq::pulled::{self, Pull};
use mqbridge_native::rocketmq::served_records::{Place, ServedRecords, StoredUnit};

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

/// Splits a batch into units, and serves and decodes those that clients can read. The data are also served as a unit themselves.
pub fn decode_batch(data: &[u8]) -> Result<Store> {
    let _ = serve(data);
    let mut body = Vec::new();
    for message in split_batch(data)? {
        let mut unit = Vec::new();
        write_neutral(message.flag, 5, &data[message.body], &data[message.properties.clone()], &mut unit)?;
        if message.properties.len() < 32000 {
            body.extend(serve(&unit)?);
        }
    }
    decode::decode_pulls(vec![Pull { body: Source::Owned(body), first: 0, next: i64::MAX, tags: vec![] }], &mut decompress)
}

/// Returns the record of a unit, after trying other places and tags.
fn serve(data: &[u8]) -> Result<Vec<u8>> {
    let unit = || std::iter::once(StoredUnit { data, number: 3, published_ms: 5 });
    let place = Place { topic: b"T", queue_id: 1, store_host: &[1; 8], physical_base: 9, added: b"CLUSTER\x01c\x02" };
    let long = Place { topic: &[b't'; 200], store_host: &[1; 20], ..place };
    let _ = ServedRecords::select(unit(), &long, &[b"t".to_vec()]).map(written);
    ServedRecords::select(unit(), &place, &[]).map(written)
}

fn written(served: ServedRecords) -> Vec<u8> {
    let mut out = vec![0; served.size];
    served.write(&mut out);
    out
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
