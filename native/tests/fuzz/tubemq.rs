//! Fuzzes the decoder of a Broker's response to a get, and the encoders of send requests and of a server's responses, whose messages
//! must be decodable again.

use mqbridge_native::message::{Slice, Source, Store};
use mqbridge_native::tubemq::decode::{Decoder, MsgTimes, StoredMessage};
use mqbridge_native::tubemq::encode::{Encoder, MsgTimeTexts};
use mqbridge_native::tubemq::pack::split_response;
use mqbridge_native::tubemq::served_pack::ServedPack;
use mqbridge_native::{Error, Result};

/// Stands for the time zone, which Python provides: a `$msgTime$` value is a number of seconds.
struct Zone;

impl MsgTimes for Zone {
    fn parse(&mut self, value: &[u8]) -> Result<Option<i64>> {
        Ok(std::str::from_utf8(value).ok().and_then(|text| text.parse::<u32>().ok()).map(|number| i64::from(number) * 1000))
    }
}

impl MsgTimeTexts for Zone {
    fn write(&mut self, second: i64, out: &mut Vec<u8>) -> Result<bool> {
        let is_valid = (0..1_000_000_000_000).contains(&second);
        if is_valid {
            out.extend_from_slice(format!("{second:012}").as_bytes());
        }
        Ok(is_valid)
    }
}

/// Returns the checksum that a message with these data must have.
fn checksum(data: &[u8]) -> i32 {
    (crc32fast::hash(data) & 0x7FFF_FFFF) as i32
}

/// Serves a unit to consumers of all types, and of the type `t1`; returns the encoded messages.
fn serve(unit: &[u8], id: i64) -> Result<Vec<u8>> {
    let _ = ServedPack::select([(unit, id)].into_iter(), &[b"t1".to_vec()]).map(written);
    ServedPack::select([(unit, id)].into_iter(), &[]).map(written)
}

fn written(pack: ServedPack) -> Vec<u8> {
    let mut out = vec![0; pack.size];
    pack.write(&mut out);
    out
}

/// Serves a message of a response as a unit, and reads it again.
fn serve_again(message: &StoredMessage, data: &[u8]) {
    let unit = [&((8 + data.len()) as u32).to_be_bytes(), &message.flag.to_be_bytes()[..], data].concat();
    let served = serve(&unit, message.id).unwrap();
    let (messages, _) = split_response(&served, 1).unwrap();
    assert_eq!((messages.len(), messages[0].id, messages[0].flag), (1, message.id, message.flag));
    assert_eq!((messages[0].check_sum, messages[0].data.bytes_in(&served)), (checksum(data), data));
}

/// Decodes the messages of a response, and serves them again. The checksums of messages with an even id are corrected first. The
/// data are also served as a unit themselves.
pub fn decode(data: &[u8]) -> Result<Store> {
    let _ = serve(data, -1);
    let mut store = Store::new();
    let source = store.add_source(Source::Owned(data.to_vec()));
    let (messages, other_fields) = split_response(data, source).ok_or(Error::Unsupported)?;
    assert!(other_fields.len() <= data.len());
    let mut zone = Zone;
    let mut decoder = Decoder::new(28, &mut zone);
    for (index, mut message) in (0..).zip(messages) {
        serve_again(&message, store.bytes(message.data));
        if message.id & 1 == 0 {
            message.check_sum = checksum(store.bytes(message.data));
        }
        decoder.add(&mut store, message, index)?;
    }
    Ok(store)
}

/// Encodes the messages, with and without an origin prefix, and decodes the requests again.
pub fn encode(store: &Store) {
    for origin_prefix in [None, Some(&b"c|t|0|"[..])] {
        let mut zone = Zone;
        let mut encoder = Encoder::new(origin_prefix, &mut zone);
        for message in store.messages().filter(|message| message.defect().is_none()) {
            let Ok(request) = encoder.add(&message) else { continue };
            let body = message.payload().unwrap_or_default();
            let mut data = vec![0; request.block_size() + body.len()];
            request.write_data(&encoder.bytes, body, &mut data);
            decode_again(data, i32::from(request.attributes.is_some()));
        }
    }
}

/// Decodes the data field of a request, as if a Broker had stored it.
fn decode_again(data: Vec<u8>, flag: i32) {
    let (mut store, length, check_sum) = (Store::new(), data.len(), checksum(&data));
    let source = store.add_source(Source::Owned(data));
    let stored = StoredMessage { id: 0, data: Slice::of(source, 0, length), flag, check_sum };
    let mut zone = Zone;
    if Decoder::new(0, &mut zone).add(&mut store, stored, 0).is_ok() {
        assert_eq!((store.len(), store.message(0).defect()), (1, None), "an encoded message cannot be decoded");
    }
}
