//! Reader and writer of protobuf's wire format. The reader accepts and rejects the same bytes as protobuf's own parser (upb).

/// The error for bytes that are not a valid protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// The value of a field, by its wire type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Varint(u64),
    /// Bytes, a string or an inner message: start and end offset in the reader's data.
    Bytes(usize, usize),
    /// A fixed-size number or a group. No field of our messages has these wire types, so callers ignore it.
    Skipped,
}

/// Maximum nesting depth of messages and groups, the limit of upb.
const MAX_DEPTH: u32 = 100;

/// Reads the fields of a message one after the other.
pub struct Reader<'a> {
    data: &'a [u8],
    /// Offset of the next field.
    at: usize,
    /// Remaining nesting depth.
    depth: u32,
}

impl<'a> Reader<'a> {
    /// Makes a reader of a message whose encoding is `data`.
    pub fn new(data: &'a [u8]) -> Reader<'a> {
        Reader { data, at: 0, depth: MAX_DEPTH }
    }

    /// Moves to the offset `at`, where a field begins.
    pub fn starting_at(self, at: usize) -> Reader<'a> {
        Reader { at, ..self }
    }

    /// Makes a reader of the inner message at the offsets `start..end` of the same data.
    pub fn inner(&self, start: usize, end: usize) -> Reader<'a> {
        Reader { data: &self.data[..end], at: start, depth: self.depth - 1 }
    }

    /// Returns the offset of the next field.
    pub fn offset(&self) -> usize {
        self.at
    }

    /// Reads the number and the value of the next field; returns None at the end of the message.
    #[inline]
    pub fn field(&mut self) -> Result<Option<(u32, Value)>, Corrupt> {
        if self.at == self.data.len() {
            return Ok(None);
        }
        let tag = self.varint32()?;
        let number = tag >> 3;
        if number == 0 {
            return Err(Corrupt);
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            2 => {
                let (start, end) = self.length_delimited()?;
                Value::Bytes(start, end)
            }
            wire_type => {
                self.skip(wire_type, number, self.depth)?;
                Value::Skipped
            }
        };
        Ok(Some((number, value)))
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, Corrupt> {
        let byte = *self.data.get(self.at).ok_or(Corrupt)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads a varint of up to ten bytes; bits beyond 64 are dropped.
    #[inline]
    fn varint(&mut self) -> Result<u64, Corrupt> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        let mut value = u64::from(first & 0x7f);
        for shift in 1..10 {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * shift);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Corrupt)
    }

    /// Reads a tag or a length: a varint of up to five bytes whose value has at most 32 bits.
    #[inline]
    fn varint32(&mut self) -> Result<u32, Corrupt> {
        let start = self.at;
        let value = self.varint()?;
        if self.at - start > 5 { Err(Corrupt) } else { u32::try_from(value).map_err(|_| Corrupt) }
    }

    /// Reads a length and the bytes that follow it; returns the start and end offset of these bytes.
    #[inline]
    fn length_delimited(&mut self) -> Result<(usize, usize), Corrupt> {
        let length = self.varint32()? as usize;
        let start = self.at;
        self.advance(length)?;
        Ok((start, self.at))
    }

    /// Moves forward by `length` bytes.
    fn advance(&mut self, length: usize) -> Result<(), Corrupt> {
        if length > self.data.len() - self.at {
            return Err(Corrupt);
        }
        self.at += length;
        Ok(())
    }

    /// Skips the value of a field with this wire type and number; `depth` is the remaining nesting depth.
    fn skip(&mut self, wire_type: u32, number: u32, depth: u32) -> Result<(), Corrupt> {
        match wire_type {
            0 => self.varint().map(|_| ()),
            1 => self.advance(8),
            2 => self.length_delimited().map(|_| ()),
            3 => self.skip_group(number, depth),
            5 => self.advance(4),
            _ => Err(Corrupt), // the end of a group without its start, or an invalid wire type
        }
    }

    /// Skips to the end of a group with this number. Like upb, accepts the field number 0 inside a group.
    fn skip_group(&mut self, number: u32, depth: u32) -> Result<(), Corrupt> {
        let depth = depth.checked_sub(1).ok_or(Corrupt)?;
        loop {
            let tag = self.varint32()?;
            match (tag >> 3, tag & 7) {
                (group, 4) => return if group == number { Ok(()) } else { Err(Corrupt) }, // end of a group
                (field, wire_type) => self.skip(wire_type, field, depth)?,
            }
        }
    }
}

/// Appends a number as a varint.
pub fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns the number of bytes that `write_varint` appends.
pub fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a field of bytes: its tag, which has one byte, the length, and the bytes.
pub fn write_bytes(tag: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(data: &[u8]) -> Result<Vec<(u32, Value)>, Corrupt> {
        let mut reader = Reader::new(data);
        let mut fields = Vec::new();
        while let Some(field) = reader.field()? {
            fields.push(field);
        }
        Ok(fields)
    }

    #[test]
    fn varints_have_at_most_ten_bytes_and_tags_at_most_five() {
        assert_eq!(fields(b"\x98\x80\x80\x80\x00\x05"), Ok(vec![(3, Value::Varint(5))]));
        assert_eq!(fields(b"\x98\x80\x80\x80\x80\x00\x05"), Err(Corrupt));
        assert_eq!(fields(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), Ok(vec![(3, Value::Varint(u64::MAX))]));
        assert_eq!(fields(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Err(Corrupt));
    }

    #[test]
    fn fields_of_other_wire_types_are_skipped() {
        assert_eq!(fields(b"\x0d\0\0\0\0\x09\0\0\0\0\0\0\0\0\x18\x01").unwrap().len(), 3);
        assert_eq!(fields(b"\x0b\x12\x01\x0c\x1b\x1c\x0c\x18\x01"), Ok(vec![(1, Value::Skipped), (3, Value::Varint(1))]));
        for corrupt in
            [&b"\x0c"[..], b"\x0b", b"\x0b\x14", b"\0\0", b"\x1e\0", b"\x0d\0\0\0", b"\x0a\x05", b"\x0a\xff\xff\xff\xff\x7f"]
        {
            assert_eq!(fields(corrupt), Err(Corrupt), "{corrupt:?}");
        }
    }

    #[test]
    fn groups_nested_too_deeply_are_corrupt() {
        let nested = |depth: usize| [vec![0x0b; depth], vec![0x0c; depth]].concat();
        assert!(fields(&nested(100)).is_ok());
        assert_eq!(fields(&nested(101)), Err(Corrupt));
    }

    #[test]
    fn varint_size_is_the_number_of_bytes_written() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            write_varint(value, &mut out);
            assert_eq!(out.len(), varint_size(value));
        }
    }
}
