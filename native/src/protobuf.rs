//! Protobuf's wire format, read as protobuf's own parser (upb) reads it: what it takes is taken, what it refuses is refused.

/// Bytes that are no message of protobuf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// What a field holds, as its wire type says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Varint(u64),
    /// Where bytes begin and end.
    Bytes(usize, usize),
    /// A fixed number or a group; no field here is one, so it belongs to a field that nobody knows.
    Skipped,
}

/// How deep messages and groups may lie in each other.
const MAX_DEPTH: u32 = 100;

/// The fields between two offsets of some bytes.
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    /// Of the message that these bytes are.
    pub fn new(data: &'a [u8]) -> Reader<'a> {
        Reader { data, at: 0, depth: MAX_DEPTH }
    }

    /// From this offset on, where a field begins.
    pub fn from(self, at: usize) -> Reader<'a> {
        Reader { at, ..self }
    }

    /// Of the message at `start..end` of this one.
    pub fn inner(&self, start: usize, end: usize) -> Reader<'a> {
        Reader { data: &self.data[..end], at: start, depth: self.depth - 1 }
    }

    /// Where the next field begins.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Number and value of the next field; None at the end.
    #[inline]
    pub fn field(&mut self) -> Result<Option<(u32, Value)>, Corrupt> {
        if self.at == self.data.len() {
            return Ok(None);
        }
        let tag = self.number32()?;
        let number = tag >> 3;
        if number == 0 {
            return Err(Corrupt);
        }
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            2 => {
                let (start, end) = self.bytes()?;
                Value::Bytes(start, end)
            }
            kind => {
                self.skip(kind, number, self.depth)?;
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

    /// A number of up to ten bytes; bits beyond 64 are dropped.
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

    /// A tag or a length: up to five bytes, 32 bits.
    #[inline]
    fn number32(&mut self) -> Result<u32, Corrupt> {
        let start = self.at;
        let value = self.varint()?;
        if self.at - start > 5 { Err(Corrupt) } else { u32::try_from(value).map_err(|_| Corrupt) }
    }

    /// Bytes behind their length.
    #[inline]
    fn bytes(&mut self) -> Result<(usize, usize), Corrupt> {
        let length = self.number32()? as usize;
        let start = self.at;
        self.step(length)?;
        Ok((start, self.at))
    }

    fn step(&mut self, length: usize) -> Result<(), Corrupt> {
        if length > self.data.len() - self.at {
            return Err(Corrupt);
        }
        self.at += length;
        Ok(())
    }

    fn skip(&mut self, kind: u32, number: u32, depth: u32) -> Result<(), Corrupt> {
        match kind {
            0 => self.varint().map(|_| ()),
            1 => self.step(8),
            2 => self.bytes().map(|_| ()),
            3 => self.skip_group(number, depth),
            5 => self.step(4),
            _ => Err(Corrupt), // the end of a group that did not begin, or no kind at all
        }
    }

    /// Up to the end of a group with this number. Inside of it even fields with the number 0 are taken.
    fn skip_group(&mut self, number: u32, depth: u32) -> Result<(), Corrupt> {
        let depth = depth.checked_sub(1).ok_or(Corrupt)?;
        loop {
            let tag = self.number32()?;
            match (tag >> 3, tag & 7) {
                (end, 4) => return if end == number { Ok(()) } else { Err(Corrupt) },
                (inner, kind) => self.skip(kind, inner, depth)?,
            }
        }
    }
}

/// Appends an unsigned number.
pub fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes `write_varint` appends.
pub fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends a field that holds bytes; its tag is one byte.
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
        let mut found = Vec::new();
        while let Some(field) = reader.field()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn numbers_have_ten_bytes_and_tags_five() {
        assert_eq!(fields(b"\x98\x80\x80\x80\x00\x05"), Ok(vec![(3, Value::Varint(5))]));
        assert_eq!(fields(b"\x98\x80\x80\x80\x80\x00\x05"), Err(Corrupt));
        assert_eq!(fields(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), Ok(vec![(3, Value::Varint(u64::MAX))]));
        assert_eq!(fields(b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Err(Corrupt));
    }

    #[test]
    fn what_nobody_knows_is_skipped() {
        assert_eq!(fields(b"\x0d\0\0\0\0\x09\0\0\0\0\0\0\0\0\x18\x01").unwrap().len(), 3);
        assert_eq!(fields(b"\x0b\x12\x01\x0c\x1b\x1c\x0c\x18\x01"), Ok(vec![(1, Value::Skipped), (3, Value::Varint(1))]));
        for corrupt in
            [&b"\x0c"[..], b"\x0b", b"\x0b\x14", b"\0\0", b"\x1e\0", b"\x0d\0\0\0", b"\x0a\x05", b"\x0a\xff\xff\xff\xff\x7f"]
        {
            assert_eq!(fields(corrupt), Err(Corrupt), "{corrupt:?}");
        }
    }

    #[test]
    fn groups_end_at_a_depth() {
        let nested = |depth: usize| [vec![0x0b; depth], vec![0x0c; depth]].concat();
        assert!(fields(&nested(100)).is_ok());
        assert_eq!(fields(&nested(101)), Err(Corrupt));
    }

    #[test]
    fn varints_are_as_long_as_they_say() {
        for value in [0, 1, 127, 128, 16383, 16384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            write_varint(value, &mut out);
            assert_eq!(out.len(), varint_size(value));
        }
    }
}
