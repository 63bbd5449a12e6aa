//! Damage as it happens to structured bytes: some of it keeps lengths true, so that it reaches what lies behind them.

/// A generator of numbers from a seed: splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, 0 for a limit of 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next() % limit as u64) as usize }
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Longer inputs are cut: small ones find what large ones do, and faster.
const MAX_BYTES: usize = 16 << 10;

const BYTES: &[u8] = &[0, 1, 2, 3, 4, 8, 9, 10, 13, 32, b'"', b'%', b',', b'=', b'|', b'0', b'9', 0x7F, 0x80, 0xC3, 0xFE, 0xFF];

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

/// Some bytes of `seeds` with one to eight changes, rather few than many.
pub fn mutated(random: &mut Random, seeds: &[Vec<u8>], into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&seeds[random.below(seeds.len())]);
    for _ in 0..1 + random.next().trailing_zeros().min(7) {
        change(random, seeds, into);
    }
    into.truncate(MAX_BYTES);
}

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
            let keeping = random.below(2) == 0;
            replace(data, at, end, &[], keeping);
        }
        10 | 11 => replace(data, at, at, random.pick(WORDS), true),
        12 => {
            let end = at + random.below(data.len() - at + 1);
            let copied = data[at..end].to_vec();
            let keeping = random.below(2) == 0;
            replace(data, end, end, &copied, keeping);
        }
        13 => {
            let number = number(random, data.len() - at);
            replace(data, at, at, &varint(number), true);
        }
        14 => {
            let other = &seeds[random.below(seeds.len())];
            let begin = random.below(other.len());
            let end = begin + random.below(other.len() - begin + 1);
            let keeping = random.below(2) == 0;
            replace(data, at, at, &other[begin..end], keeping);
        }
        15 | 16 => {
            let (begin, end) = text_around(data, at);
            replace(data, begin, end, random.pick(WORDS), true);
        }
        _ => {
            let other = &seeds[random.below(seeds.len())];
            data.extend_from_slice(other); // many formats hold messages back to back
        }
    }
}

/// Begin and end of the name or value that this byte belongs to.
fn text_around(data: &[u8], at: usize) -> (usize, usize) {
    let of_a_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"._$%-/".contains(byte);
    let begin = data[..at].iter().rposition(|byte| !of_a_word(byte)).map_or(0, |before| before + 1);
    let length = data[at..].iter().position(|byte| !of_a_word(byte)).unwrap_or(data.len() - at);
    (begin, at + length)
}

/// One that hurts, or one around the bytes that are left.
fn number(random: &mut Random, left: usize) -> u64 {
    match random.below(3) {
        0 => (left as u64).wrapping_add(random.below(9) as u64).wrapping_sub(4),
        1 => random.next() >> random.below(64),
        _ => random.pick(NUMBERS),
    }
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn overwrite(data: &mut [u8], at: usize, bytes: &[u8]) {
    for (place, byte) in data[at..].iter_mut().zip(bytes) {
        *place = *byte;
    }
}

/// Puts other bytes where `at..end` were; `keeping` changes the lengths around them with them.
fn replace(data: &mut Vec<u8>, at: usize, end: usize, bytes: &[u8], keeping: bool) {
    if keeping {
        adjust_lengths(data, at, end, bytes.len() as i64 - (end - at) as i64);
    }
    data.splice(at..end, bytes.iter().copied());
}

/// Adds `delta` to what may be lengths of areas that hold `at..end`: numbers of 2 or 4 bytes, and protobuf's of one byte.
fn adjust_lengths(data: &mut [u8], at: usize, end: usize, delta: i64) {
    let length = data.len();
    for place in at.saturating_sub(4096)..at {
        let holds = |begin: usize, size: usize| size > 0 && begin + size >= end && begin + size <= length;
        let four = data.get(place..place + 4).map(|four| u32::from_be_bytes(four.try_into().unwrap()) as usize);
        let two = data.get(place..place + 2).map(|two| u16::from_be_bytes(two.try_into().unwrap()) as usize);
        if let Some(size) = four.filter(|size| place + 4 <= at && (holds(place + 4, *size) || holds(place, *size))) {
            data[place..place + 4].copy_from_slice(&((size as i64 + delta) as u32).to_be_bytes());
        } else if let Some(size) = two.filter(|size| place + 2 <= at && *size > 255 && holds(place + 2, *size)) {
            data[place..place + 2].copy_from_slice(&((size as i64 + delta) as u16).to_be_bytes());
        } else if place > 0 && is_tag(data[place - 1]) && data[place] < 0x80 && holds(place + 1, data[place] as usize) {
            if data[place - 1..=place].iter().all(u8::is_ascii_lowercase) {
                continue; // two letters of a text
            }
            data[place] = (data[place] as i64 + delta).clamp(0, 0x7F) as u8;
        }
    }
}

/// Whether a field of bytes may begin with it.
fn is_tag(byte: u8) -> bool {
    byte & 7 == 2 && byte < 0x80
}
