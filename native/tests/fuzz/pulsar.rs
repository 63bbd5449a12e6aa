//! Pulsar: an entry behind two bytes, the number of messages in its batch (0: it is none) and which of these are due; where it is
//! no batch, its metadata behind two bytes of length. What is encoded is read back.

use mqbridge_native::Result;
use mqbridge_native::message::{Slice, Source, Store};
use mqbridge_native::pulsar::decode::{Decoder, Entry, Kind};
use mqbridge_native::pulsar::delivered;
use mqbridge_native::pulsar::encode::{Limits, encode as encode_entries};

pub fn decode(data: &[u8]) -> Result<Store> {
    let (head, rest) = data.split_at(data.len().min(2));
    let [count, due] = *head else { return Ok(Store::new()) };
    let mut decoder = Decoder::default();
    let mut entry = Entry { ledger: 3, entry: 4, redelivery_count: 1, publish_time: 5, ..Entry::default() };
    if count == 0 {
        let (size, rest) = rest.split_at(rest.len().min(2));
        let size = size.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)).min(rest.len());
        entry.kind = Kind::Single(owned(&mut decoder.store, &rest[..size]));
        entry.payload = owned(&mut decoder.store, &rest[size..]);
        entry.deliver_at = (due & 1 == 1).then_some(1 << 41);
    } else {
        let due = if due == 0 { Vec::new() } else { vec![i64::from(due as i8); 1 + usize::from(due & 1)] };
        entry.kind = Kind::Batch(i64::from(count), due);
        entry.payload = owned(&mut decoder.store, rest);
    }
    decoder.add(&entry)?;
    Ok(decoder.store)
}

fn owned(store: &mut Store, bytes: &[u8]) -> Slice {
    let source = store.add_source(Source::Owned(bytes.to_vec()));
    store.slice_of_source(source)
}

/// The frame of a MESSAGE; what the plain code is to read is nothing here.
pub fn decode_frame(data: &[u8]) -> Result<Store> {
    let mut decoder = Decoder::default();
    if let Some(found) = delivered::read(data) {
        let source = decoder.store.add_source(Source::Owned(data.to_vec()));
        decoder.add(&found.stored(source, &[]))?;
    }
    Ok(decoder.store)
}

/// The size of a frame and the checksum of its entry, where that is.
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

pub fn encode(store: &Store) {
    for (origin, limits) in [
        (None, Limits { max_messages: 5000, max_bytes: 512 << 10 }),
        (Some(&b"c|t|0|"[..]), Limits { max_messages: 3, max_bytes: 500 }),
    ] {
        let encoded = encode_entries(store.messages(), origin, &limits);
        for entry in &encoded.entries {
            let mut payload = vec![0; entry.size];
            encoded.write(entry, &mut payload);
            let count = entry.indexes.len();
            let is_alone = count == 1 && store.message(entry.indexes.start).deliver_at().is_some();
            let mut decoder = Decoder::default();
            let mut read = Entry { payload: owned(&mut decoder.store, &payload), ..Entry::default() };
            read.kind = if is_alone {
                Kind::Single(owned(&mut decoder.store, &entry.metadata))
            } else {
                Kind::Batch(count as i64, Vec::new())
            };
            if let Ok(defect) = decoder.add(&read) {
                assert_eq!((defect, decoder.store.len()), (None, count), "what was written cannot be read");
            }
        }
    }
}
