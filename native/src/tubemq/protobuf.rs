//! Protobuf's encoding, as far as packs need it.

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Varint(u64),
    /// Where its bytes begin and end.
    Bytes(usize, usize),
}

/// Reads the fields of a message that is at `at..end` of `data`.
pub struct Fields<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Fields<'a> {
    pub fn new(data: &'a [u8], at: usize, end: usize) -> Self {
        Fields { data, at, end }
    }

    /// Where the next field begins.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.end
    }

    /// The next field and its number; None for damaged bytes and for what is neither a varint nor bytes.
    pub fn read(&mut self) -> Option<(u32, Field)> {
        let tag = u32::try_from(self.varint()?).ok()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            2 => {
                let size = usize::try_from(self.varint()?).ok()?;
                if size > self.end - self.at {
                    return None;
                }
                self.at += size;
                Field::Bytes(self.at - size, self.at)
            }
            _ => return None,
        };
        (tag >> 3 != 0).then_some((tag >> 3, field))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = *self.data[..self.end].get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        let last = *self.data[..self.end].get(self.at)?; // the tenth byte holds the highest bit
        self.at += 1;
        (last <= 1).then_some(value | u64::from(last) << 63)
    }
}
