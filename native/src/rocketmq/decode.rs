//! Decodes pulls into messages: the counterpart of `decode_pulls` in `mqbridge/rocketmq/mapping/stored.py`.

use crate::Result;
use crate::message::{Position, Row, Store};
use crate::rocketmq::PLACEHOLDER;
use crate::rocketmq::pulled::{Pull, keep_wanted};
use crate::rocketmq::read_block::BlockReader;
use crate::rocketmq::record::{Decompress, Record, decode_records};

/// Decodes consecutive pulls; a damaged record becomes a message with its `defect`.
pub fn decode_pulls(pulls: Vec<Pull>, decompress: &mut Decompress) -> Result<Store> {
    let mut store = Store::new();
    let (mut records, mut reader) = (Vec::new(), BlockReader::default());
    for Pull { body, first, next, tags } in pulls {
        records.clear();
        let source = store.add_source(body);
        let keep_compressed = false;
        decode_records(&mut store, source, decompress, keep_compressed, &mut records)?;
        keep_wanted(&store, &mut records, first, next, &tags);
        store.rows.reserve(records.len());
        for record in &records {
            let row = decode_record(&mut store, record, &mut reader);
            store.rows.push(row);
        }
    }
    Ok(store)
}

/// Returns the number of messages that `decode_pulls` makes from a pull, and the queue offset of the first, if any.
///
/// It does not decompress bodies, except those of inner batches: records that contain several messages.
pub fn count(pull: Pull, decompress: &mut Decompress) -> Result<(usize, Option<i64>)> {
    let Pull { body, first, next, tags } = pull;
    let (mut store, mut records) = (Store::new(), Vec::new());
    let source = store.add_source(body);
    let keep_compressed = true;
    decode_records(&mut store, source, decompress, keep_compressed, &mut records)?;
    keep_wanted(&store, &mut records, first, next, &tags);
    Ok((records.len(), records.first().map(|record| record.queue_offset)))
}

/// Returns the message of a record. It adds the record's properties and index keys to the store, unless the record is damaged.
fn decode_record(store: &mut Store, record: &Record, reader: &mut BlockReader) -> Row {
    let mut row = Row {
        payload: Some(record.body),
        publish_time: Some(record.store_timestamp),
        position: Position::new(&[record.queue_offset]),
        defect: record.defect,
        ..Row::default()
    };
    if record.defect.is_some() {
        return row;
    }
    row.delivery_count = i64::from(record.reconsume_times);
    // A gateway writes PLACEHOLDER for a missing or empty payload; the properties tell which.
    let blank = store.bytes(record.body) == PLACEHOLDER;
    let from_gateway = reader.read_block(store, record.properties, record.flag, blank, &mut row);
    if !from_gateway {
        // A gateway writes the event time, if any, as a property.
        row.event_time = Some(record.born_timestamp);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::message::{Key, Source};

    fn record(offset: i64, body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let size = 91 + body.len() + 1 + properties.len();
        for number in [size as u32, 0xDAA3_20A7, crc32fast::hash(body) & 0x7FFF_FFFF, 0, 0] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&[0; 12]); // physical offset, system flag
        out.extend_from_slice(&100i64.to_be_bytes());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&200i64.to_be_bytes());
        out.extend_from_slice(&[0; 20]); // store host, reconsume times, prepared offset
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(b"\x01T");
        out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
        out.extend_from_slice(properties);
        out
    }

    fn decoded(body: Vec<u8>, first: i64, tags: &[&str]) -> Result<Store> {
        let tags = tags.iter().map(|tag| tag.to_string()).collect();
        let pull = Pull { body: Source::Owned(body), first, next: 100, tags };
        decode_pulls(vec![pull], &mut |_, _| panic!("nothing is compressed"))
    }

    #[test]
    fn a_record_of_a_producer_is_decoded() {
        let store =
            decoded(record(7, b"body", b"a\x011\x02WAIT\x01true\x02TAGS\x01t\x02KEYS\x01k1 k2\x02WAIT\x01true\x02"), 0, &[]);
        let store = store.unwrap();
        let message = store.message(0);
        assert_eq!(message.payload(), Some(&b"body"[..]));
        assert_eq!(message.properties().collect::<Vec<_>>(), [(&b"a"[..], &b"1"[..])]);
        assert_eq!((message.msg_type(), message.key()), (Some(&b"t"[..]), Key::Text(&b"k1"[..])));
        assert_eq!(message.keys().collect::<Vec<_>>(), [b"k1", b"k2"]);
        assert_eq!((message.event_time(), message.row.publish_time), (Some(100), Some(200)));
        assert_eq!(message.position(), Position::new(&[7]));
    }

    #[test]
    fn a_record_of_a_gateway_is_decoded() {
        let string =
            b"b\x011\x02a\x012\x02mqbridge.origin\x01o\x02mqbridge.null\x011\x02UNIQ_KEY\x01U\x02mqbridge.order\x011,0\x02";
        let store = decoded(record(7, b"\0", string), 0, &[]).unwrap();
        let message = store.message(0);
        assert_eq!(message.properties().map(|(name, _)| name).collect::<Vec<_>>(), [b"b", b"a"]);
        assert_eq!((message.payload(), message.origin(), message.hops()), (None, Some(&b"o"[..]), 1));
        assert_eq!(message.event_time(), None);
    }

    #[test]
    fn records_outside_of_the_offsets_or_with_other_tags_are_left_out() {
        let body = [record(1, b"x", b"TAGS\x01t\x02"), record(2, b"y", b"TAGS\x01u\x02"), record(3, b"z", b"")].concat();
        assert_eq!(decoded(body.clone(), 2, &[]).unwrap().len(), 2);
        assert_eq!(decoded(body, 0, &["u"]).unwrap().messages().next().unwrap().payload(), Some(&b"y"[..]));
    }

    #[test]
    fn damage_is_a_defect_or_an_error_for_all_records() {
        let mut body = record(1, b"xy", b"");
        body[88] ^= 1; // the first byte of the record's body
        let store = decoded([body.clone(), record(2, b"y", b"a\x01\xff\x02")].concat(), 0, &[]).unwrap();
        assert!(store.message(0).defect().unwrap().starts_with(b"the CRC-32 of its body is "));
        assert_eq!(store.message(1).defect(), Some(&b"its properties are not UTF-8"[..]));
        let error = decoded(body[..90].to_vec(), 0, &[]).err();
        let text = "the record at byte 0 of 90 cannot be read: 90 bytes are left, and a record has 91 at least";
        assert_eq!(error, Some(Error::Protocol(text.to_string())));
    }
}
