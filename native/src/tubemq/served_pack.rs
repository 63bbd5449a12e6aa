//! Makes the messages of a response to a get from units: see `mqbridge/tubemq/mapping/served_pack.py`.

use memchr::{memchr, memmem};

use crate::message::MSG_TYPE;
use crate::protobuf::{varint_size, write_varint};
use crate::tubemq::decode::{CHECKSUM_MASK, LENGTH_BYTES, attributes_end};
use crate::{Error, Result};

/// The size of the fields before the data of a unit: the unit's size, and the flag.
const HEADER_BYTES: usize = 8;
/// The protobuf tags of `GetMessageResponseB2C.messages`, and of the four fields of `TransferedMessage`.
const MESSAGE: u8 = 0x22;
const ID: u8 = 0x08;
const CHECKSUM: u8 = 0x10;
const DATA: u8 = 0x1a;
const FLAG: u8 = 0x20;

/// A message that was checked.
struct ServedMessage<'a> {
    id: u64,
    check_sum: u32,
    data: &'a [u8],
    /// The flag as protobuf writes it: a negative one has 64 bits.
    flag: u64,
}

impl ServedMessage<'_> {
    /// Returns the size of the encoded `TransferedMessage`.
    fn size(&self) -> usize {
        let numbers = varint_size(self.id) + varint_size(u64::from(self.check_sum)) + varint_size(self.flag);
        4 + numbers + varint_size(self.data.len() as u64) + self.data.len()
    }
}

/// The messages of a response.
pub struct ServedPack<'a> {
    messages: Vec<ServedMessage<'a>>,
    /// Number of bytes that `write` writes.
    pub size: usize,
}

impl<'a> ServedPack<'a> {
    /// Checks the units, which are given with their message ids, and selects those with one of `types`, or all if there are none.
    pub fn select(units: impl Iterator<Item = (&'a [u8], i64)>, types: &[Vec<u8>]) -> Result<Self> {
        let (mut messages, mut size) = (Vec::new(), 0);
        for (index, (unit, id)) in units.enumerate() {
            let (flag, data) = split_unit(unit, index)?;
            if !types.is_empty() && !message_type(data, flag).is_some_and(|found| types.iter().any(|wanted| wanted == found)) {
                continue;
            }
            let check_sum = crc32fast::hash(data) & CHECKSUM_MASK;
            let message = ServedMessage { id: id as u64, check_sum, data, flag: i64::from(flag) as u64 };
            let message_size = message.size();
            size += 1 + varint_size(message_size as u64) + message_size;
            messages.push(message);
        }
        Ok(Self { messages, size })
    }

    /// Returns the number of messages.
    pub fn count(&self) -> usize {
        self.messages.len()
    }

    /// Writes all messages; `out` has exactly their size.
    pub fn write(&self, out: &mut [u8]) {
        let (mut rest, mut fields) = (out, Vec::new());
        let mut append = |part: &[u8]| {
            let (target, after) = std::mem::take(&mut rest).split_at_mut(part.len());
            target.copy_from_slice(part);
            rest = after;
        };
        for message in &self.messages {
            fields.clear();
            for (tag, value) in [
                (MESSAGE, message.size() as u64),
                (ID, message.id),
                (CHECKSUM, u64::from(message.check_sum)),
                (DATA, message.data.len() as u64),
            ] {
                fields.push(tag);
                write_varint(value, &mut fields);
            }
            append(&fields);
            append(message.data);
            fields.clear();
            fields.push(FLAG);
            write_varint(message.flag, &mut fields);
            append(&fields);
        }
    }
}

/// Returns the flag and the data of a unit. It is an error if the bytes are none.
fn split_unit(unit: &[u8], index: usize) -> Result<(i32, &[u8])> {
    let total = unit.len();
    let invalid = |problem: String| Error::Protocol(format!("unit {index} cannot be served: {problem}"));
    let Some((header, data)) = unit.split_first_chunk::<HEADER_BYTES>() else {
        return Err(invalid(format!("it has {total} bytes, and a unit has {HEADER_BYTES} at least")));
    };
    let [a, b, c, d, e, f, g, h] = *header;
    let (size, flag) = (i32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h]));
    if usize::try_from(size) != Ok(total) {
        return Err(invalid(format!("its size is {size}, and it has {total} bytes")));
    }
    Ok((flag, data))
}

/// Returns the type of a message as Java consumers read it: see the function of the same name in the Python code.
fn message_type(data: &[u8], flag: i32) -> Option<&[u8]> {
    let attributes = &data[LENGTH_BYTES..attributes_end(data, flag)?];
    memmem::find(attributes, MSG_TYPE)?;
    let value =
        attributes.rsplit(|byte| *byte == b',').filter(|item| memmem::find(item, MSG_TYPE).is_some()).find_map(second_part)?;
    (!value.is_empty()).then_some(value)
}

/// Returns what is between the first `=` of an item and the next one; None if nothing but `=` follows.
fn second_part(item: &[u8]) -> Option<&[u8]> {
    let end = item.iter().rposition(|byte| *byte != b'=')? + 1;
    let value = &item[memchr(b'=', &item[..end])? + 1..end];
    Some(&value[..memchr(b'=', value).unwrap_or(value.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(data: &[u8], flag: i32) -> Vec<u8> {
        [&((HEADER_BYTES + data.len()) as u32).to_be_bytes(), &flag.to_be_bytes()[..], data].concat()
    }

    fn with_attributes(attributes: &[u8]) -> Vec<u8> {
        [&(attributes.len() as u32).to_be_bytes(), attributes, b"body"].concat()
    }

    fn serve(units: &[Vec<u8>], types: &[Vec<u8>]) -> Result<(Vec<u8>, usize)> {
        let pack = ServedPack::select(units.iter().map(|data| (&data[..], -1)), types)?;
        let mut out = vec![0; pack.size];
        pack.write(&mut out);
        Ok((out, pack.count()))
    }

    #[test]
    fn a_message_has_the_fields_of_the_unit() {
        let (out, count) = serve(&[unit(b"hello0", 1)], &[]).unwrap();
        let id = b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
        let expected = [&b"\x22\x1b"[..], id, b"\x10\x92\xd3\xdb\x81\x07", b"\x1a\x06hello0", b"\x20\x01"].concat();
        assert_eq!((out, count), (expected, 1));
    }

    #[test]
    fn other_types_are_left_out() {
        let units = [unit(&with_attributes(b"$msgType$=t"), 1), unit(b"body", 0)];
        assert_eq!(serve(&units, &[b"t".to_vec()]).unwrap().1, 1);
        assert_eq!(serve(&units, &[b"u".to_vec()]), Ok((vec![], 0)));
        assert_eq!(serve(&units, &[]).unwrap().1, 2);
    }

    #[test]
    fn the_type_is_that_of_java() {
        for (attributes, expected) in [
            (&b"$msgType$=a=b"[..], Some(&b"a"[..])),
            (b"$msgType$=a,x$msgType$=b,$msgType$", Some(b"b")),
            (b"$msgType$=a,=$msgType$", Some(b"$msgType$")),
            (b"$msgType$=a,$msgType$==b", None),
            (b"$msgType$==", None),
            (b"a=1", None),
        ] {
            assert_eq!(message_type(&with_attributes(attributes), 1), expected);
            assert_eq!(message_type(&with_attributes(attributes), 2), None);
        }
        assert_eq!(message_type(b"\x7f\xff\xff\xff$msgType$=a", 1), None);
    }

    #[test]
    fn every_truncation_is_an_error() {
        let data = unit(b"body", 0);
        for end in 0..data.len() {
            assert!(matches!(serve(&[data.clone(), data[..end].to_vec()], &[]), Err(Error::Protocol(_))), "{end}");
        }
    }
}
