//! Random changes to structured bytes. Some of them also adjust the lengths around the change, so that decoders accept these and
//! get to the changed bytes.

/// A random number generator, the algorithm splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns a 64-bit random number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }

    /// Returns a random item.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// Maximum size of an input, because small inputs find the same bugs as large ones, in less time.
const MAX_BYTES: usize = 16 << 10;

/// Bytes that are separators, small numbers or limits of ranges.
const BYTES: &[u8] = &[0, 1, 2, 3, 4, 8, 9, 10, 13, 32, b'"', b'%', b',', b'=', b'|', b'0', b'9', 0x7F, 0x80, 0xC3, 0xFE, 0xFF];

/// Numbers at the limits of integer types.
const NUMBERS: &[u64] = &[
    0,
    1,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Property names, values and escapes that the decoders treat specially.
const WORDS: &[&[u8]] = &[
    b"mqbridge.v",
    b"mqbridge.origin",
    b"mqbridge.hops",
    b"mqbridge.key",
    b"mqbridge.key.b64",
    b"mqbridge.keys",
    b"mqbridge.msg_type",
    b"mqbridge.attributes.b64",
    b"mqbridge.event_time",
    b"mqbridge.deliver_at",
    b"mqbridge.ordering_key",
    b"mqbridge.without",
    b"mqbridge.null",
    b"mqbridge.empty",
    b"mqbridge.order",
    b"mqbridge.u.",
    b"mqbridge.u.mqbridge.v",
    b"c|t|0|1:2:3",
    b"$msgType$",
    b"$msgTime$",
    b"202311142213",
    b"TAGS",
    b"KEYS",
    b"WAIT",
    b"UNIQ_KEY",
    b"__SHARDINGKEY",
    b"TIMER_DELIVER_MS",
    b"DELAY",
    b"INNER_NUM",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"-0",
    b"00",
    b"%2C",
    b"%C3%A9",
    b"%ED%A0%80",
    b"%",
    b"/w==",
    b"====",
    b"0,1,2",
    "é".as_bytes(),
    "\u{10FFFF}".as_bytes(),
    b"\xED\xA0\x80",
    b"\xC3",
    b"\x01a\x02",
];

/// Puts a random seed with one to eight random changes into `data`. Each further change is half as likely.
pub fn mutate_seed(random: &mut Random, seeds: &[Vec<u8>], data: &mut Vec<u8>) {
    data.clear();
    data.extend_from_slice(&seeds[random.below(seeds.len())]);
    for _ in 0..1 + random.next().trailing_zeros().min(7) {
        change(random, seeds, data);
    }
    data.truncate(MAX_BYTES);
}

/// Makes one random change.
fn change(random: &mut Random, seeds: &[Vec<u8>], data: &mut Vec<u8>) {
    let at = random.below(data.len());
    match random.below(18) {
        0 | 1 => data.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        2 => overwrite(data, at, &[random.pick(BYTES)]),
        3 => overwrite(data, at, &[random.next() as u8]),
        4 => {
            let number = number(random, data.len() - at).to_be_bytes();
            overwrite(data, at, &number[8 - random.pick(&[1, 2, 4, 8])..]);
        }
        5 => {
            let number = number(random, data.len() - at);
            overwrite(data, at, &varint(number));
        }
        6 => overwrite(data, at, random.pick(WORDS)),
        7 => data.truncate(at),
        8 | 9 => {
            let end = at + random.below((data.len() - at).min(64) + 1);
            let adjusts_lengths = random.below(2) == 0;
            replace(data, at, end, &[], adjusts_lengths);
        }
        10 | 11 => replace(data, at, at, random.pick(WORDS), true),
        12 => {
            let end = at + random.below(data.len() - at + 1);
            let copied = data[at..end].to_vec();
            let adjusts_lengths = random.below(2) == 0;
            replace(data, end, end, &copied, adjusts_lengths);
        }
        13 => {
            let number = number(random, data.len() - at);
            replace(data, at, at, &varint(number), true);
        }
        14 => {
            let other = &seeds[random.below(seeds.len())];
            let begin = random.below(other.len());
            let end = begin + random.below(other.len() - begin + 1);
            let adjusts_lengths = random.below(2) == 0;
            replace(data, at, at, &other[begin..end], adjusts_lengths);
        }
        15 | 16 => {
            let (begin, end) = text_around(data, at);
            replace(data, begin, end, random.pick(WORDS), true);
        }
        _ => {
            let other = &seeds[random.below(seeds.len())];
            data.extend_from_slice(other); // in many formats, messages follow each other without separators
        }
    }
}

/// Returns the start and end offset of the name or value around the byte at this offset.
fn text_around(data: &[u8], at: usize) -> (usize, usize) {
    let is_word_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"._$%-/".contains(byte);
    let begin = data[..at].iter().rposition(|byte| !is_word_byte(byte)).map_or(0, |before| before + 1);
    let length = data[at..].iter().position(|byte| !is_word_byte(byte)).unwrap_or(data.len() - at);
    (begin, at + length)
}

/// Returns a random number: near the number of remaining bytes, of a random size, or one of NUMBERS.
fn number(random: &mut Random, remaining_bytes: usize) -> u64 {
    match random.below(3) {
        0 => (remaining_bytes as u64).wrapping_add(random.below(9) as u64).wrapping_sub(4),
        1 => random.next() >> random.below(64),
        _ => random.pick(NUMBERS),
    }
}

/// Encodes a number as a varint.
fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// Overwrites the bytes from an offset on, up to the end of the data.
fn overwrite(data: &mut [u8], at: usize, bytes: &[u8]) {
    for (old, byte) in data[at..].iter_mut().zip(bytes) {
        *old = *byte;
    }
}

/// Replaces the bytes `at..end`. With `adjusts_lengths`, it also adjusts the numbers before them that may be lengths.
fn replace(data: &mut Vec<u8>, at: usize, end: usize, bytes: &[u8], adjusts_lengths: bool) {
    if adjusts_lengths {
        adjust_lengths(data, at, end, bytes.len() as i64 - (end - at) as i64);
    }
    data.splice(at..end, bytes.iter().copied());
}

/// Adds `delta` to the numbers before `at` that may be the length of a part that contains `at..end`.
///
/// These are big-endian numbers of 2 or 4 bytes, and lengths of one byte after the tag of a protobuf field.
fn adjust_lengths(data: &mut [u8], at: usize, end: usize, delta: i64) {
    let data_size = data.len();
    for index in at.saturating_sub(4096)..at {
        let contains_range = |begin: usize, size: usize| size > 0 && begin + size >= end && begin + size <= data_size;
        let four = data.get(index..index + 4).map(|four| u32::from_be_bytes(four.try_into().unwrap()) as usize);
        let two = data.get(index..index + 2).map(|two| u16::from_be_bytes(two.try_into().unwrap()) as usize);
        if let Some(size) =
            four.filter(|size| index + 4 <= at && (contains_range(index + 4, *size) || contains_range(index, *size)))
        {
            data[index..index + 4].copy_from_slice(&((size as i64 + delta) as u32).to_be_bytes());
        } else if let Some(size) = two.filter(|size| index + 2 <= at && *size > 255 && contains_range(index + 2, *size)) {
            data[index..index + 2].copy_from_slice(&((size as i64 + delta) as u16).to_be_bytes());
        } else if index > 0 && is_tag(data[index - 1]) && data[index] < 0x80 && contains_range(index + 1, data[index] as usize) {
            if data[index - 1..=index].iter().all(u8::is_ascii_lowercase) {
                continue; // more likely two letters of a text
            }
            data[index] = (data[index] as i64 + delta).clamp(0, 0x7F) as u8;
        }
    }
}

/// Returns true for a byte that may be the tag of a protobuf field of bytes.
fn is_tag(byte: u8) -> bool {
    byte & 7 == 2 && byte < 0x80
}
