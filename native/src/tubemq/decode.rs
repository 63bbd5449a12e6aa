//! A pack into messages: the counterpart of `mqbridge/tubemq/mapping/stored.py` and the reading half of `properties.py`.

use memchr::{memchr, memmem};

use crate::Result;
use crate::message::{Key, MSG_TIME, MSG_TYPE, Pair, Position, RESERVED_PREFIX, Row, Slice, Store};
use crate::reserved::{CarriedFields, USER_PREFIX, is_carried, read_carried};
use crate::text::is_utf8;
use crate::tubemq::escapes::{MARKER, unescape};

const HAS_ATTRIBUTES: i32 = 1;
const CHECKSUM_MASK: u32 = 0x7FFF_FFFF;
/// What stands before an attribute string: its length.
pub const LENGTH_BYTES: usize = 4;
/// Of a `$msgTime$`; a value of another length is no time.
pub const DIGITS: usize = 12;
const DAMAGED: &[u8] = b"its checksum does not match its content";

/// Times (ms since the epoch) by the values of `$msgTime$`; None for a value that is no time.
pub trait Minutes {
    fn read(&mut self, value: &[u8]) -> Result<Option<i64>>;
}

/// A message as a Broker hands it out; `data` lies in a source of the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfered {
    pub id: i64,
    pub data: Slice,
    pub flag: i32,
    pub check_sum: i32,
}

/// Decodes messages one by one; `offset` is the pack's, `minutes` reads times.
pub struct Decoder<'m, M: Minutes> {
    offset: i64,
    minutes: &'m mut M,
    ours: memmem::Finder<'static>,
    /// Of the message before: pairs that are being sorted into the user's own and ours.
    rest: Vec<Pair>,
}

impl<'m, M: Minutes> Decoder<'m, M> {
    pub fn new(offset: i64, minutes: &'m mut M) -> Self {
        Decoder { offset, minutes, ours: memmem::Finder::new(RESERVED_PREFIX), rest: Vec::new() }
    }

    /// Adds the row of a message with this index in its pack.
    pub fn add(&mut self, store: &mut Store, item: Transfered, index: i64) -> Result<()> {
        let mut row = Row { position: Position::new(&[self.offset, index]), ..Row::default() };
        let data = store.bytes(item.data);
        if i64::from(crc32fast::hash(data) & CHECKSUM_MASK) != i64::from(item.check_sum) {
            row.payload = Some(item.data);
            row.defect = Some(store.copy(DAMAGED));
        } else if let Some(end) = attributes_end(data, item.flag) {
            let (attributes, body) = (item.data.part(LENGTH_BYTES, end), item.data.without_prefix(end));
            row.payload = Some(body);
            self.read_block(store, attributes, &mut row)?;
        } else {
            row.payload = Some(item.data);
        }
        store.rows.push(row);
        Ok(())
    }

    fn read_block(&mut self, store: &mut Store, attributes: Slice, row: &mut Row) -> Result<()> {
        let text = store.bytes(attributes);
        if self.ours.find(text).is_none() {
            return self.read_native(store, attributes, row);
        }
        let marker = items(text).find(|(begin, end)| &text[*begin..*end] == MARKER);
        match marker {
            Some(marker) => self.read_built(store, attributes, marker, row),
            None => self.read_appended(store, attributes, row),
        }
    }

    fn read_native(&mut self, store: &mut Store, attributes: Slice, row: &mut Row) -> Result<()> {
        let start = store.pairs.len();
        read_pairs(store, attributes);
        row.pairs = (start as u32, store.pairs.len() as u32);
        row.attributes = Some(attributes);
        let (msg_type, minute) = system_fields(store, row.pairs);
        row.msg_type = msg_type;
        row.event_time = match minute {
            Some(minute) => self.minutes.read(store.bytes(minute))?,
            None => None,
        };
        Ok(())
    }

    /// `marker`: where the marker begins and ends.
    fn read_built(&mut self, store: &mut Store, attributes: Slice, marker: (usize, usize), row: &mut Row) -> Result<()> {
        let start = store.pairs.len();
        if marker.0 > 0 {
            read_pairs(store, attributes.part(0, marker.0 - 1));
        }
        for index in start..store.pairs.len() {
            let (name, value) = unescape(store, store.pairs[index]);
            let prefix = if store.bytes(name).starts_with(USER_PREFIX) { USER_PREFIX.len() } else { 0 };
            store.pairs[index] = (name.without_prefix(prefix), value);
        }
        let behind = if marker.1 < attributes.len() { Some(attributes.without_prefix(marker.1 + 1)) } else { None };
        let carried = self.read_behind(store, behind, row);
        // What somebody else appended is the user's; the system's own pairs stand there because no property says the same.
        let mut written_type = None;
        for (name, value) in &self.rest {
            let text = store.bytes(*name);
            if text == MSG_TYPE {
                written_type = Some(*value);
            } else if text != MSG_TIME {
                store.pairs.push((*name, *value));
            }
        }
        row.pairs = (start as u32, store.pairs.len() as u32);
        row.msg_type = written_type.or_else(|| system_fields(store, row.pairs).0);
        set_carried(row, carried);
        Ok(())
    }

    fn read_appended(&mut self, store: &mut Store, attributes: Slice, row: &mut Row) -> Result<()> {
        let blank = row.payload.is_some_and(|body| body.is_empty());
        let mut at = attributes.len() + 1; // where the first appended item begins; a comma stands before it
        while at > 0 {
            let begin = memchr::memrchr(b',', &store.bytes(attributes)[..at - 1]).map_or(0, |comma| comma + 1);
            if !is_appended(store, attributes.part(begin, at - 1), blank) {
                break;
            }
            at = begin;
        }
        let behind = if at <= attributes.len() { Some(attributes.without_prefix(at)) } else { None };
        let carried = self.read_behind(store, behind, row);
        if !self.rest.is_empty() {
            return self.read_native(store, attributes, row);
        }
        self.read_native(store, attributes.part(0, at.saturating_sub(1)), row)?;
        set_carried(row, carried);
        Ok(())
    }

    /// The fields among the pairs of the items that a gateway wrote; the other pairs are in `rest` after that.
    fn read_behind(&mut self, store: &mut Store, behind: Option<Slice>, row: &Row) -> CarriedFields {
        let start = store.pairs.len();
        if let Some(behind) = behind {
            read_pairs(store, behind);
        }
        self.rest.clear();
        for index in start..store.pairs.len() {
            let pair = unescape(store, store.pairs[index]);
            self.rest.push(pair);
        }
        store.pairs.truncate(start);
        read_carried(store, &mut self.rest, row.payload.is_some_and(|body| body.is_empty()))
    }
}

/// Where the attribute string ends and the body begins; None where all is body.
fn attributes_end(data: &[u8], flag: i32) -> Option<usize> {
    if flag & HAS_ATTRIBUTES == 0 {
        return None;
    }
    let length = i32::from_be_bytes(*data.first_chunk()?);
    let end = LENGTH_BYTES.checked_add(usize::try_from(length).ok()?)?;
    (end <= data.len()).then_some(end)
}

/// Where the items of an attribute string begin and end.
pub fn items(text: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut begin = 0;
    memchr::memchr_iter(b',', text).chain([text.len()]).map(move |end| {
        let item = (begin, end);
        begin = end + 1;
        item
    })
}

/// Appends the pairs of an attribute string to the store's.
pub fn read_pairs(store: &mut Store, attributes: Slice) {
    let whole = is_utf8(store.bytes(attributes));
    let (mut begin, size) = (0, attributes.len());
    while begin <= size {
        let text = store.bytes(attributes);
        let end = memchr(b',', &text[begin..]).map_or(size, |at| begin + at);
        if let Some(pair) = read_pair(store, attributes.part(begin, end), whole) {
            store.pairs.push(pair);
        }
        begin = end + 1;
    }
}

/// The pair of an item, None when it is none. `known`: the item is known to be UTF-8.
fn read_pair(store: &Store, item: Slice, known: bool) -> Option<Pair> {
    let text = store.bytes(item);
    match memchr(b'=', text) {
        Some(at) if at > 0 && (known || is_utf8(text)) => Some((item.part(0, at), item.without_prefix(at + 1))),
        _ => None,
    }
}

/// Whether an item is what a gateway appends to a string that it found.
pub fn is_appended(store: &mut Store, item: Slice, blank: bool) -> bool {
    if memmem::find(store.bytes(item), RESERVED_PREFIX).is_none() {
        return false;
    }
    let Some(pair) = read_pair(store, item, false) else { return false };
    let pair = unescape(store, pair);
    is_carried(store, pair, blank)
}

/// Type and time: the first pair of each, as native readers take them.
fn system_fields(store: &Store, pairs: (u32, u32)) -> (Option<Slice>, Option<Slice>) {
    let (mut msg_type, mut minute) = (None, None);
    for (name, value) in &store.pairs[pairs.0 as usize..pairs.1 as usize] {
        if name.len() != MSG_TYPE.len() {
            continue; // both names are as long
        }
        match store.bytes(*name) {
            MSG_TYPE => msg_type = msg_type.or(Some(*value)),
            MSG_TIME => minute = minute.or(Some(*value)),
            _ => continue,
        }
        if msg_type.is_some() && minute.is_some() {
            break;
        }
    }
    (msg_type, minute)
}

/// Fields that were carried replace what the string says.
fn set_carried(row: &mut Row, carried: CarriedFields) {
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
    use crate::tubemq::encode::{Encoder, MinuteTexts};

    /// Minutes are the numbers that they look like.
    struct Numbers;

    impl Minutes for Numbers {
        fn read(&mut self, value: &[u8]) -> Result<Option<i64>> {
            Ok(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()))
        }
    }

    impl MinuteTexts for Numbers {
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
        let item = Transfered { id: 1, data: Slice::of(source, 0, length), flag: 1, check_sum };
        Decoder::new(28, &mut Numbers).add(&mut store, item, 3).unwrap();
        store
    }

    /// The attribute string that the first message of a store is written with.
    fn written(store: &Store, prefix: Option<&[u8]>) -> String {
        let mut zone = Numbers;
        let mut encoder = Encoder::new(prefix, &mut zone);
        let (start, end) = encoder.add(&store.message(0)).unwrap().block.unwrap();
        String::from_utf8(encoder.bytes[start..end].to_vec()).unwrap()
    }

    #[test]
    fn a_native_string_is_kept_and_our_pairs_follow_it() {
        let store = decoded(b"$msgType$=t,$msgTime$=202611202350,a=1,odd,b==", b"body");
        let message = store.message(0);
        assert_eq!((message.msg_type(), message.event_time()), (Some(&b"t"[..]), Some(202_611_202_350)));
        assert_eq!((message.property(b"b"), message.properties().len()), (Some(&b"="[..]), 4));
        let kept = "$msgType$=t,$msgTime$=202611202350,a=1,odd,b==";
        assert_eq!(written(&store, None), kept);
        assert_eq!(written(&store, Some(b"c|t|0|")), format!("{kept},mqbridge.origin=c|t|0|28:3"));
    }

    #[test]
    fn a_built_string_says_it_all_and_is_built_again() {
        let built = "a%2Cb=%,mqbridge.v=1,$msgType$=t,mqbridge.key=k,mqbridge.null=1";
        let store = decoded(built.as_bytes(), b"");
        let message = store.message(0);
        assert!(message.payload().is_none() && message.attributes().is_none());
        assert_eq!(message.properties().collect::<Vec<_>>(), [(&b"a,b"[..], &b""[..])]);
        assert!(matches!(message.key(), Key::Text(b"k")));
        assert_eq!(written(&store, None), built);
    }

    #[test]
    fn a_length_that_cannot_be_is_body() {
        for data in [&b"\x7f\xff\xff\xffabc"[..], b"\xff\xff\xff\xff", b"ab"] {
            assert_eq!(attributes_end(data, HAS_ATTRIBUTES), None);
        }
        assert_eq!(attributes_end(b"\0\0\0\x01ab", HAS_ATTRIBUTES), Some(5));
        assert_eq!(attributes_end(b"\0\0\0\x01ab", 0), None);
    }
}
