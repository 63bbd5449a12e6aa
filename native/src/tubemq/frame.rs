//! Frames of send requests: the counterparts of `mqbridge/tubemq/wire/send.py`, `rpc.encode_request` and `frame.encode_frame`.

use crate::tubemq::protobuf::{varint_size, write_varint};

const TOKEN: u32 = 0xFF7F_F4FE;
const BLOCK_BYTES: usize = 8192;
/// What the Java side accepts in one frame.
pub const MAX_PAYLOAD_BYTES: usize = 3584 * BLOCK_BYTES;
const HEADER_BYTES: usize = 12;
const LENGTH_BYTES: usize = 4;
const MSG_TYPE_TAG: u8 = 0x42;
const MSG_TIME_TAG: u8 = 0x4A;
const FLAG_TAG: u8 = 0x28;

/// What the requests of one partition have in common; each part is encoded.
pub struct SendHead<'a> {
    /// The envelope up to the length of its body, and the body up to the length of the request.
    pub start: &'a [u8],
    pub inner: &'a [u8],
    /// The request's fields before the length of its data, behind its flag, and behind type and time.
    pub before: &'a [u8],
    pub after: &'a [u8],
    pub auth: &'a [u8],
}

/// What one request says: an attribute block with its length (empty for none), a body, type and time.
pub struct SendBody<'a> {
    pub block: Option<&'a [u8]>,
    pub body: &'a [u8],
    pub msg_type: Option<&'a [u8]>,
    pub msg_time: Option<&'a [u8]>,
}

impl SendBody<'_> {
    /// Bytes of the field `data`.
    pub fn data_size(&self) -> usize {
        self.block.map_or(0, |block| LENGTH_BYTES + block.len()) + self.body.len()
    }

    /// The field `flag`.
    pub fn flag(&self) -> u8 {
        u8::from(self.block.is_some())
    }

    /// Writes the field `data`, of `data_size` bytes.
    pub fn write_data(&self, out: &mut [u8]) {
        let (front, body) = out.split_at_mut(out.len() - self.body.len());
        body.copy_from_slice(self.body);
        if let Some(block) = self.block {
            front[..LENGTH_BYTES].copy_from_slice(&(block.len() as u32).to_be_bytes());
            front[LENGTH_BYTES..].copy_from_slice(block);
        }
    }
}

fn text_size(text: Option<&[u8]>) -> usize {
    text.map_or(0, |text| 1 + varint_size(text.len() as u64) + text.len())
}

/// The bytes of the payload of a request's frame, and of the request in it.
fn sizes(head: &SendHead, said: &SendBody) -> (usize, usize) {
    let data = said.data_size();
    let request = head.before.len()
        + varint_size(data as u64)
        + data
        + 2
        + head.after.len()
        + text_size(said.msg_type)
        + text_size(said.msg_time)
        + head.auth.len();
    let body = head.inner.len() + varint_size(request as u64) + request;
    (head.start.len() + varint_size(body as u64) + body, request)
}

/// Bytes of the payload of a request's frame.
pub fn payload_size(head: &SendHead, said: &SendBody) -> usize {
    sizes(head, said).0
}

/// Bytes of the whole frame.
pub fn frame_size(head: &SendHead, said: &SendBody) -> usize {
    let payload = payload_size(head, said);
    HEADER_BYTES + LENGTH_BYTES * payload.div_ceil(BLOCK_BYTES) + payload
}

/// Writes the frame of a request, whose payload has at most MAX_PAYLOAD_BYTES, to the front of `out`; gives what is behind it.
pub fn write_frame<'o>(serial: u32, head: &SendHead, said: &SendBody, out: &'o mut [u8]) -> &'o mut [u8] {
    let (payload, request) = sizes(head, said);
    let mut blocks = Blocks { out, left: payload, room: 0 };
    blocks.put(&TOKEN.to_be_bytes());
    blocks.put(&serial.to_be_bytes());
    blocks.put(&(payload.div_ceil(BLOCK_BYTES) as u32).to_be_bytes());
    blocks.write(head.start);
    blocks.write_varint(head.inner.len() + varint_size(request as u64) + request);
    blocks.write(head.inner);
    blocks.write_varint(request);
    blocks.write(head.before);
    blocks.write_varint(said.data_size());
    if let Some(block) = said.block {
        blocks.write(&(block.len() as u32).to_be_bytes());
        blocks.write(block);
    }
    blocks.write(said.body);
    blocks.write(&[FLAG_TAG, said.flag()]);
    blocks.write(head.after);
    for (tag, text) in [(MSG_TYPE_TAG, said.msg_type), (MSG_TIME_TAG, said.msg_time)] {
        if let Some(text) = text {
            blocks.write(&[tag]);
            blocks.write_varint(text.len());
            blocks.write(text);
        }
    }
    blocks.write(head.auth);
    blocks.out
}

/// Cuts a payload into blocks of BLOCK_BYTES, each behind its length, while it is written.
struct Blocks<'a> {
    out: &'a mut [u8],
    /// Bytes of the payload that are in no block yet.
    left: usize,
    /// What is left of the current block.
    room: usize,
}

impl Blocks<'_> {
    /// Bytes that belong to no block.
    fn put(&mut self, bytes: &[u8]) {
        let (front, rest) = std::mem::take(&mut self.out).split_at_mut(bytes.len());
        front.copy_from_slice(bytes);
        self.out = rest;
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.room == 0 {
                self.room = self.left.min(BLOCK_BYTES);
                self.left -= self.room;
                self.put(&(self.room as u32).to_be_bytes());
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.room));
            self.put(now);
            self.room -= now.len();
            bytes = later;
        }
    }

    fn write_varint(&mut self, value: usize) {
        let mut bytes = [0; 10];
        let size = write_varint(value as u64, &mut bytes);
        self.write(&bytes[..size]);
    }
}
