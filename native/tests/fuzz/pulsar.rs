//! Fuzzes the decoders of Pulsar's entries and frames, and the encoder, whose entries must be decodable again.
//!
//! The input of `decode` is: the number of messages in the batch (one byte, 0 if the entry is no batch); one byte that selects
//! the messages to deliver, or whether there is a delivery time; for no batch, the size of the metadata (two bytes) and the
//! metadata; the payload.

use mqbridge_native::Result;
use mqbridge_native::message::{Slice, Source, Store};
use mqbridge_native::pulsar::decode::{Decoder, Entry, Kind};
use mqbridge_native::pulsar::delivered;
use mqbridge_native::pulsar::encode::{Limits, encode as encode_entries};
use mqbridge_native::pulsar::sent::{self, StoredSend};

/// Decodes an entry from an input in the format described above.
pub fn decode(data: &[u8]) -> Result<Store> {
    let (prefix, rest) = data.split_at(data.len().min(2));
    let [count, selector] = *prefix else { return Ok(Store::new()) };
    let mut decoder = Decoder::default();
    let mut entry = Entry { ledger: 3, entry: 4, redelivery_count: 1, publish_time: 5, ..Entry::default() };
    if count == 0 {
        let (size, rest) = rest.split_at(rest.len().min(2));
        let size = size.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)).min(rest.len());
        entry.kind = Kind::Single(copy_to_store(&mut decoder.store, &rest[..size]));
        entry.payload = copy_to_store(&mut decoder.store, &rest[size..]);
        entry.deliver_at = (selector & 1 == 1).then_some(1 << 41);
    } else {
        let ack_set = if selector == 0 { Vec::new() } else { vec![i64::from(selector as i8); 1 + usize::from(selector & 1)] };
        entry.kind = Kind::Batch { count: i64::from(count), ack_set };
        entry.payload = copy_to_store(&mut decoder.store, rest);
    }
    decoder.add(&entry)?;
    Ok(decoder.store)
}

/// Adds a copy of these bytes to the store as a source; returns the slice of all of it.
fn copy_to_store(store: &mut Store, bytes: &[u8]) -> Slice {
    let source = store.add_source(Source::Owned(bytes.to_vec()));
    store.slice_of_source(source)
}

/// Decodes a MESSAGE frame; a frame without an ordinary entry gives an empty store.
pub fn decode_frame(data: &[u8]) -> Result<Store> {
    let mut decoder = Decoder::default();
    if let Some(fields) = delivered::parse_frame(data) {
        let source = decoder.store.add_source(Source::Owned(data.to_vec()));
        decoder.add(&fields.entry_to_decode(source, &[]))?;
    }
    Ok(decoder.store)
}

/// Parses a SEND frame. One with an ordinary entry gives a receipt, and a message with the entry as its payload.
pub fn decode_send(data: &[u8]) -> Result<Store> {
    let mut decoder = Decoder::default();
    if let Some(sent) = sent::parse_send(data, 1 << 20) {
        assert!(sent.entry_at <= data.len() && sent.count > 0);
        let receipt = StoredSend { sequence: sent.sequence, highest: sent.highest, ledger: 1, entry: u64::from(sent.count) };
        sent::encode_receipts(sent.producer, [receipt].into_iter(), &mut Vec::new());
        let kind = Kind::Single(copy_to_store(&mut decoder.store, b""));
        let payload = copy_to_store(&mut decoder.store, &data[sent.entry_at..]);
        decoder.add(&Entry { kind, payload, ..Entry::default() })?;
    }
    Ok(decoder.store)
}

/// Corrects the size of a frame and the checksum of its entry, if the frame is long enough.
pub fn repair_frame(data: &mut [u8]) {
    if data.len() < 8 {
        return;
    }
    let total = data.len() as u32 - 4;
    data[..4].copy_from_slice(&total.to_be_bytes());
    let at = 8 + u32::from_be_bytes(data[4..8].try_into().unwrap()) as usize;
    if data.len() >= at.saturating_add(6) {
        let sum = crc32c::crc32c(&data[at + 6..]);
        data[at + 2..at + 6].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Encodes messages into entries and decodes these again.
pub fn encode(store: &Store) {
    for (origin, limits) in [
        (None, Limits { max_messages: 5000, max_bytes: 512 << 10 }),
        (Some(&b"c|t|0|"[..]), Limits { max_messages: 3, max_bytes: 500 }),
    ] {
        let encoded = encode_entries(store.messages(), origin, &limits);
        for entry in &encoded.entries {
            let mut payload = vec![0; entry.size];
            encoded.write_payload(entry, &mut payload);
            let count = entry.indexes.len();
            let is_alone = count == 1 && store.message(entry.indexes.start).deliver_at().is_some();
            let mut decoder = Decoder::default();
            let mut received = Entry { payload: copy_to_store(&mut decoder.store, &payload), ..Entry::default() };
            received.kind = if is_alone {
                Kind::Single(copy_to_store(&mut decoder.store, &entry.metadata))
            } else {
                Kind::Batch { count: count as i64, ack_set: Vec::new() }
            };
            if let Ok(defect) = decoder.add(&received) {
                assert_eq!((defect, decoder.store.len()), (None, count), "an encoded entry cannot be decoded");
            }
        }
    }
}
