//! TubeMQ: a Broker's answer to a get, and the send requests of its messages. What is encoded is read back.

use mqbridge_native::message::{Slice, Source, Store};
use mqbridge_native::tubemq::decode::{Decoder, Minutes, Transfered};
use mqbridge_native::tubemq::encode::{Encoder, MinuteTexts};
use mqbridge_native::tubemq::frame::{SendBody, SendHead, frame_size, write_frame};
use mqbridge_native::tubemq::pack::split_answer;
use mqbridge_native::{Error, Result};

/// Times as numbers, in place of the time zone, which is Python's.
struct Zone;

impl Minutes for Zone {
    fn read(&mut self, value: &[u8]) -> Result<Option<i64>> {
        Ok(std::str::from_utf8(value).ok().and_then(|text| text.parse::<u32>().ok()).map(|number| i64::from(number) * 1000))
    }
}

impl MinuteTexts for Zone {
    fn write(&mut self, second: i64, out: &mut Vec<u8>) -> Result<bool> {
        let is_known = (0..1_000_000_000_000).contains(&second);
        if is_known {
            out.extend_from_slice(format!("{second:012}").as_bytes());
        }
        Ok(is_known)
    }
}

fn checksum(data: &[u8]) -> i32 {
    (crc32fast::hash(data) & 0x7FFF_FFFF) as i32
}

/// Messages with an odd id keep the checksum that they have; the others get theirs, as if a Broker had seen them so.
pub fn decode(data: &[u8]) -> Result<Store> {
    let mut store = Store::new();
    let source = store.add_source(Source::Owned(data.to_vec()));
    let (messages, rest) = split_answer(data, source).ok_or(Error::Unsupported)?;
    assert!(rest.len() <= data.len());
    let mut zone = Zone;
    let mut decoder = Decoder::new(28, &mut zone);
    for (index, mut message) in (0..).zip(messages) {
        if message.id & 1 == 0 {
            message.check_sum = checksum(store.bytes(message.data));
        }
        decoder.add(&mut store, message, index)?;
    }
    Ok(store)
}

pub fn encode(store: &Store) {
    for prefix in [None, Some(&b"c|t|0|"[..])] {
        let mut zone = Zone;
        let mut encoder = Encoder::new(prefix, &mut zone);
        for message in store.messages().filter(|message| message.defect().is_none()) {
            let Ok(request) = encoder.add(&message) else { continue };
            let part = |range: Option<(usize, usize)>| range.map(|(start, end)| &encoder.bytes[start..end]);
            let said = SendBody {
                block: part(request.block),
                body: message.payload().unwrap_or_default(),
                msg_type: message.msg_type(),
                msg_time: part(request.time),
            };
            let head =
                SendHead { start: b"\x02\x08\x01", inner: b"\x08\x01", before: b"\x0a\x01t", after: b"\x30\x01", auth: b"" };
            let mut frame = vec![0; frame_size(&head, &said)];
            assert!(write_frame(7, &head, &said, &mut frame).is_empty());
            let mut data = vec![0; said.data_size()];
            said.write_data(&mut data);
            read_back(data, i32::from(said.flag()));
        }
    }
}

fn read_back(data: Vec<u8>, flag: i32) {
    let (mut store, length, check_sum) = (Store::new(), data.len(), checksum(&data));
    let source = store.add_source(Source::Owned(data));
    let item = Transfered { id: 0, data: Slice::of(source, 0, length), flag, check_sum };
    let mut zone = Zone;
    if Decoder::new(0, &mut zone).add(&mut store, item, 0).is_ok() {
        assert_eq!((store.len(), store.message(0).defect()), (1, None), "what was written cannot be read");
    }
}
