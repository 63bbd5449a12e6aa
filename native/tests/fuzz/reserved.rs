//! Fuzzes the reader and the writer of reserved properties. The input of `decode` is a sequence of `name \x01 value \x02`.

use mqbridge_native::Result;
use mqbridge_native::message::{Key, Position, Row, Slice, Source, Store};
use mqbridge_native::reserved::{Field, carry_field, origin_properties, read_carried};

/// Decodes the properties, and makes a message with the fields that they carry.
pub fn decode(data: &[u8]) -> Result<Store> {
    let mut store = Store::new();
    let source = store.add_source(Source::Owned(data.to_vec()));
    let mut pairs = Vec::new();
    let mut begin = 0;
    for pair in data.split(|byte| *byte == 2) {
        let end = begin + pair.len();
        let name_end = begin + pair.iter().position(|byte| *byte == 1).unwrap_or(pair.len());
        if std::str::from_utf8(&data[begin..name_end]).is_ok() && std::str::from_utf8(&data[name_end..end]).is_ok() {
            pairs.push((Slice::of(source, begin, name_end), Slice::of(source, end.min(name_end + 1), end)));
        }
        begin = end + 1;
    }
    let carried = read_carried(&mut store, &mut pairs, true);
    let start = store.pairs.len() as u32;
    store.pairs.extend(&pairs);
    store.rows.push(Row {
        payload: if carried.is_null { None } else { Some(Slice::EMPTY) },
        pairs: (start, store.pairs.len() as u32),
        keys: carried.keys.unwrap_or_default(),
        key: carried.key.unwrap_or(Key::None),
        ordering_key: carried.ordering_key,
        msg_type: carried.msg_type.flatten(),
        attributes: carried.attributes,
        event_time: carried.event_time,
        deliver_at: carried.deliver_at,
        position: Position::new(&[7, 1]),
        origin: carried.origin,
        hops: carried.hops.unwrap_or(0),
        ..Row::default()
    });
    Ok(store)
}

/// Writes all fields of the messages as reserved properties.
pub fn encode(store: &Store) {
    const FIELDS: [Field; 8] = [
        Field::Key,
        Field::OrderingKey,
        Field::Keys,
        Field::MsgType,
        Field::Attributes,
        Field::EventTime,
        Field::DeliverAt,
        Field::Payload,
    ];
    let (mut scratch, mut out) = (Vec::new(), Vec::new());
    for message in store.messages() {
        let mut sink = |name: &[u8], value: &[u8]| out.extend([name, value].concat());
        for field in FIELDS {
            carry_field(&message, field, &mut scratch, &mut sink);
        }
        origin_properties(&message, Some(b"c|t|0|"), &mut scratch, &mut sink);
    }
}
