//! Decodes a pack into messages: the counterpart of `mqbridge/tubemq/mapping/stored.py` and of the reading half of
//! `properties.py`.
//!
//! A gateway adds reserved pairs (`mqbridge.…`) to an attribute string, in one of two forms. An appended string is the user's
//! string, unchanged, followed by reserved pairs. A built string contains a marker item after the user's pairs; all its names and
//! values are escaped.

use memchr::{memchr, memmem};

use crate::Result;
use crate::message::{Key, MSG_TIME, MSG_TYPE, Pair, Position, RESERVED_PREFIX, Row, Slice, Store};
use crate::reserved::{CarriedFields, USER_PREFIX, is_carried, read_carried};
use crate::text::is_utf8;
use crate::tubemq::escapes::{MARKER, unescape_pair};

/// Bit of a message's flag: its data begin with an attribute string.
const HAS_ATTRIBUTES: i32 = 1;
/// Clears the sign bit of a CRC-32.
pub const CHECKSUM_MASK: u32 = 0x7FFF_FFFF;
/// Size of the length field before an attribute string.
pub const LENGTH_BYTES: usize = 4;
/// Number of digits of a `$msgTime$` value (yyyyMMddHHmm); a value of another length is not a time.
pub const MSG_TIME_DIGITS: usize = 12;
/// The defect of a message with a wrong checksum.
const CHECKSUM_MISMATCH: &[u8] = b"its checksum does not match its content";

/// Parser of `$msgTime$` values in the cluster's time zone.
pub trait MsgTimes {
    /// Returns the time in ms since the epoch; None for a value that is not a time.
    fn parse(&mut self, value: &[u8]) -> Result<Option<i64>>;
}

/// A message as a Broker delivers it, with the fields of protobuf's `TransferedMessage`.
///
/// `data` is a slice of a source of the store: the attribute block, if any, then the body.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoredMessage {
    pub id: i64,
    pub data: Slice,
    pub flag: i32,
    pub check_sum: i32,
}

/// Decodes the messages of a pack, one after the other.
pub struct Decoder<'m, M: MsgTimes> {
    /// Offset of the pack; the position of a message is this offset and the message's index in the pack.
    offset: i64,
    msg_times: &'m mut M,
    /// Finds RESERVED_PREFIX.
    prefix_finder: memmem::Finder<'static>,
    /// The pairs that the last `read_reserved_items` read and that carry no message field.
    other_pairs: Vec<Pair>,
}

impl<'m, M: MsgTimes> Decoder<'m, M> {
    pub fn new(offset: i64, msg_times: &'m mut M) -> Self {
        Decoder { offset, msg_times, prefix_finder: memmem::Finder::new(RESERVED_PREFIX), other_pairs: Vec::new() }
    }

    /// Decodes the message with this index in its pack, and adds it to the store.
    pub fn add(&mut self, store: &mut Store, stored: StoredMessage, index: i64) -> Result<()> {
        let mut row = Row { position: Position::new(&[self.offset, index]), ..Row::default() };
        let data = store.bytes(stored.data);
        if i64::from(crc32fast::hash(data) & CHECKSUM_MASK) != i64::from(stored.check_sum) {
            row.payload = Some(stored.data);
            row.defect = Some(store.copy(CHECKSUM_MISMATCH));
        } else if let Some(end) = attributes_end(data, stored.flag) {
            let (attributes, body) = (stored.data.part(LENGTH_BYTES, end), stored.data.without_prefix(end));
            row.payload = Some(body);
            self.read_attributes(store, attributes, &mut row)?;
        } else {
            row.payload = Some(stored.data);
        }
        store.rows.push(row);
        Ok(())
    }

    /// Sets the fields of `row` from an attribute string of any form. The row's payload is the body.
    fn read_attributes(&mut self, store: &mut Store, attributes: Slice, row: &mut Row) -> Result<()> {
        let text = store.bytes(attributes);
        if self.prefix_finder.find(text).is_none() {
            return self.read_unreserved(store, attributes, row);
        }
        let marker = items(text).find(|(begin, end)| &text[*begin..*end] == MARKER);
        match marker {
            Some(marker) => self.read_built(store, attributes, marker, row),
            None => self.read_appended(store, attributes, row),
        }
    }

    /// Reads a string, or part of one, that has no reserved pairs of a gateway.
    fn read_unreserved(&mut self, store: &mut Store, attributes: Slice, row: &mut Row) -> Result<()> {
        let start = store.pairs.len();
        parse_pairs(store, attributes);
        row.pairs = (start as u32, store.pairs.len() as u32);
        row.attributes = Some(attributes);
        let (msg_type, msg_time) = system_fields(store, row.pairs);
        row.msg_type = msg_type;
        row.event_time = match msg_time {
            Some(msg_time) => self.msg_times.parse(store.bytes(msg_time))?,
            None => None,
        };
        Ok(())
    }

    /// Reads a built string. `marker` is the start and end offset of the marker item in it.
    ///
    /// A user's name that is itself reserved has USER_PREFIX in the string, which is removed here.
    fn read_built(&mut self, store: &mut Store, attributes: Slice, marker: (usize, usize), row: &mut Row) -> Result<()> {
        let start = store.pairs.len();
        if marker.0 > 0 {
            parse_pairs(store, attributes.part(0, marker.0 - 1));
        }
        for index in start..store.pairs.len() {
            let (name, value) = unescape_pair(store, store.pairs[index]);
            let prefix_size = if store.bytes(name).starts_with(USER_PREFIX) { USER_PREFIX.len() } else { 0 };
            store.pairs[index] = (name.without_prefix(prefix_size), value);
        }
        let reserved_items = if marker.1 < attributes.len() { Some(attributes.without_prefix(marker.1 + 1)) } else { None };
        let carried = self.read_reserved_items(store, reserved_items, row);
        // The gateway wrote $msgType$ and $msgTime$ after the marker. The exact event time is among the carried fields, so $msgTime$
        // is ignored. All other pairs there were appended by other programs: they are user properties.
        let mut written_type = None;
        for (name, value) in &self.other_pairs {
            let text = store.bytes(*name);
            if text == MSG_TYPE {
                written_type = Some(*value);
            } else if text != MSG_TIME {
                store.pairs.push((*name, *value));
            }
        }
        row.pairs = (start as u32, store.pairs.len() as u32);
        row.msg_type = written_type.or_else(|| system_fields(store, row.pairs).0);
        set_carried_fields(row, carried);
        Ok(())
    }

    /// Reads a string whose last items may be reserved pairs that a gateway appended.
    fn read_appended(&mut self, store: &mut Store, attributes: Slice, row: &mut Row) -> Result<()> {
        let blank = row.payload.is_some_and(|body| body.is_empty());
        // Where the first appended item begins. At first there is none, so it is where one would begin, after a further comma.
        let mut appended_at = attributes.len() + 1;
        while appended_at > 0 {
            let begin = memchr::memrchr(b',', &store.bytes(attributes)[..appended_at - 1]).map_or(0, |comma| comma + 1);
            if !is_appended(store, attributes.part(begin, appended_at - 1), blank) {
                break;
            }
            appended_at = begin;
        }
        let reserved_items = if appended_at <= attributes.len() { Some(attributes.without_prefix(appended_at)) } else { None };
        let carried = self.read_reserved_items(store, reserved_items, row);
        if !self.other_pairs.is_empty() {
            // This is `mqbridge.hops` without an origin, which no gateway writes: all items are the user's.
            return self.read_unreserved(store, attributes, row);
        }
        self.read_unreserved(store, attributes.part(0, appended_at.saturating_sub(1)), row)?;
        set_carried_fields(row, carried);
        Ok(())
    }

    /// Returns the fields that these items carry, and puts the pairs that carry none into `self.other_pairs`.
    fn read_reserved_items(&mut self, store: &mut Store, items: Option<Slice>, row: &Row) -> CarriedFields {
        let start = store.pairs.len();
        if let Some(items) = items {
            parse_pairs(store, items);
        }
        self.other_pairs.clear();
        for index in start..store.pairs.len() {
            let pair = unescape_pair(store, store.pairs[index]);
            self.other_pairs.push(pair);
        }
        store.pairs.truncate(start);
        read_carried(store, &mut self.other_pairs, row.payload.is_some_and(|body| body.is_empty()))
    }
}

/// Returns the offset at which the attribute string ends and the body begins; None if there is no attribute string.
///
/// If the length field is negative or exceeds the data, all data are the body, although the flag announces an attribute string.
pub fn attributes_end(data: &[u8], flag: i32) -> Option<usize> {
    if flag & HAS_ATTRIBUTES == 0 {
        return None;
    }
    let length = i32::from_be_bytes(*data.first_chunk()?);
    let end = LENGTH_BYTES.checked_add(usize::try_from(length).ok()?)?;
    (end <= data.len()).then_some(end)
}

/// Returns the start and end offsets of the items of an attribute string, which are separated by commas.
pub fn items(text: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut begin = 0;
    memchr::memchr_iter(b',', text).chain([text.len()]).map(move |end| {
        let item = (begin, end);
        begin = end + 1;
        item
    })
}

/// Appends the pairs of an attribute string to the store's pairs. Items that are not pairs are left out.
pub fn parse_pairs(store: &mut Store, attributes: Slice) {
    let all_utf8 = is_utf8(store.bytes(attributes));
    let (mut begin, size) = (0, attributes.len());
    while begin <= size {
        let text = store.bytes(attributes);
        let end = memchr(b',', &text[begin..]).map_or(size, |at| begin + at);
        if let Some(pair) = parse_pair(store, attributes.part(begin, end), all_utf8) {
            store.pairs.push(pair);
        }
        begin = end + 1;
    }
}

/// Parses one item; None if it is not a pair. `known_utf8`: the caller has checked that the item is UTF-8.
fn parse_pair(store: &Store, item: Slice, known_utf8: bool) -> Option<Pair> {
    let text = store.bytes(item);
    match memchr(b'=', text) {
        Some(at) if at > 0 && (known_utf8 || is_utf8(text)) => Some((item.part(0, at), item.without_prefix(at + 1))),
        _ => None,
    }
}

/// Returns true for an item that a gateway appended to a user's attribute string: a reserved pair that carries a field.
///
/// `blank`: the message has an empty body. Only then can it be a tombstone, and `mqbridge.null` carries a field.
pub fn is_appended(store: &mut Store, item: Slice, blank: bool) -> bool {
    if memmem::find(store.bytes(item), RESERVED_PREFIX).is_none() {
        return false;
    }
    let Some(pair) = parse_pair(store, item, false) else { return false };
    let pair = unescape_pair(store, pair);
    is_carried(store, pair, blank)
}

/// Returns the values of `$msgType$` and `$msgTime$`, each from the first pair of its name, as SDKs do.
fn system_fields(store: &Store, pairs: (u32, u32)) -> (Option<Slice>, Option<Slice>) {
    let (mut msg_type, mut msg_time) = (None, None);
    for (name, value) in &store.pairs[pairs.0 as usize..pairs.1 as usize] {
        if name.len() != MSG_TYPE.len() {
            continue; // the two names have the same length
        }
        match store.bytes(*name) {
            MSG_TYPE => msg_type = msg_type.or(Some(*value)),
            MSG_TIME => msg_time = msg_time.or(Some(*value)),
            _ => continue,
        }
        if msg_type.is_some() && msg_time.is_some() {
            break;
        }
    }
    (msg_type, msg_time)
}

/// Sets the carried fields, which take precedence over fields from the attribute string.
fn set_carried_fields(row: &mut Row, carried: CarriedFields) {
    if carried.is_null {
        row.payload = None;
    }
    row.key = carried.key.unwrap_or(Key::None);
    row.ordering_key = carried.ordering_key;
    row.keys = carried.keys.unwrap_or_default();
    if let Some(msg_type) = carried.msg_type {
        row.msg_type = msg_type;
    }
    row.attributes = carried.attributes.or(row.attributes);
    row.event_time = carried.event_time.or(row.event_time);
    row.deliver_at = carried.deliver_at;
    row.origin = carried.origin;
    row.hops = carried.hops.unwrap_or(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Source;
    use crate::tubemq::encode::{Encoder, MsgTimeTexts};

    /// Stands for a time zone: a `$msgTime$` value is a number, and the time is the same number.
    struct TimesAsNumbers;

    impl MsgTimes for TimesAsNumbers {
        fn parse(&mut self, value: &[u8]) -> Result<Option<i64>> {
            Ok(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()))
        }
    }

    impl MsgTimeTexts for TimesAsNumbers {
        fn write(&mut self, second: i64, out: &mut Vec<u8>) -> Result<bool> {
            out.extend_from_slice(format!("{second:012}").as_bytes());
            Ok(true)
        }
    }

    fn decoded(attributes: &[u8], body: &[u8]) -> Store {
        let data = [&(attributes.len() as u32).to_be_bytes(), attributes, body].concat();
        let check_sum = (crc32fast::hash(&data) & CHECKSUM_MASK) as i32;
        let mut store = Store::new();
        let length = data.len();
        let source = store.add_source(Source::Owned(data));
        let stored = StoredMessage { id: 1, data: Slice::of(source, 0, length), flag: 1, check_sum };
        Decoder::new(28, &mut TimesAsNumbers).add(&mut store, stored, 3).unwrap();
        store
    }

    /// Returns the attribute string that is written for the first message of a store.
    fn written(store: &Store, origin_prefix: Option<&[u8]>) -> String {
        let mut zone = TimesAsNumbers;
        let mut encoder = Encoder::new(origin_prefix, &mut zone);
        let (start, end) = encoder.add(&store.message(0)).unwrap().attributes.unwrap();
        String::from_utf8(encoder.bytes[start..end].to_vec()).unwrap()
    }

    #[test]
    fn a_string_of_an_sdk_is_kept_and_reserved_pairs_are_appended() {
        let store = decoded(b"$msgType$=t,$msgTime$=202611202350,a=1,odd,b==", b"body");
        let message = store.message(0);
        assert_eq!((message.msg_type(), message.event_time()), (Some(&b"t"[..]), Some(202_611_202_350)));
        assert_eq!((message.property(b"b"), message.properties().len()), (Some(&b"="[..]), 4));
        let kept = "$msgType$=t,$msgTime$=202611202350,a=1,odd,b==";
        assert_eq!(written(&store, None), kept);
        assert_eq!(written(&store, Some(b"c|t|0|")), format!("{kept},mqbridge.origin=c|t|0|28:3"));
    }

    #[test]
    fn a_built_string_is_decoded_and_built_again() {
        let built = "a%2Cb=%,mqbridge.v=1,$msgType$=t,mqbridge.key=k,mqbridge.null=1";
        let store = decoded(built.as_bytes(), b"");
        let message = store.message(0);
        assert!(message.payload().is_none() && message.attributes().is_none());
        assert_eq!(message.properties().collect::<Vec<_>>(), [(&b"a,b"[..], &b""[..])]);
        assert!(matches!(message.key(), Key::Text(b"k")));
        assert_eq!(written(&store, None), built);
    }

    #[test]
    fn data_with_an_impossible_length_are_all_body() {
        for data in [&b"\x7f\xff\xff\xffabc"[..], b"\xff\xff\xff\xff", b"ab"] {
            assert_eq!(attributes_end(data, HAS_ATTRIBUTES), None);
        }
        assert_eq!(attributes_end(b"\0\0\0\x01ab", HAS_ATTRIBUTES), Some(5));
        assert_eq!(attributes_end(b"\0\0\0\x01ab", 0), None);
    }
}
