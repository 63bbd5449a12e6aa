//! Damaged bytes through every decoder, and what is read through every encoder: no panic, no byte of memory kept, and never
//! more of it in use than the input explains.
//!
//! `cargo test` reads some; `make fuzz-native` sets `MQBRIDGE_FUZZ_BYTES` and reads as many through each decoder, also under
//! AddressSanitizer. `MQBRIDGE_FUZZ_SEED` draws others.

mod mutate;
mod pulsar;
mod reserved;
mod rocketmq;
mod targets;
mod tubemq;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Instant;

use mqbridge_native::message::{Key, Store};

use mutate::{Random, mutated};
use targets::{ENCODERS, Target};

/// A decoder that asks for more than this for each byte of its input, beside a little for all, believes a number in it.
const MEMORY_PER_BYTE: u64 = 256;
const MEMORY: u64 = 64 << 10;
/// Beyond what the first quarter of a run took: what Rust does not count itself.
const MEMORY_GROWS_KB: u64 = 32 << 10;
/// Of the inputs that are tried as they are before anything is counted: tables that are made once.
const ROUNDS_BEFORE: usize = 2;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, and not {text}")))
}

/// The inputs to begin with: one line of hexadecimal digits each, written by `python -m tests.fuzz.seeds`.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fuzz/seeds/{name}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect())
        .collect()
}

/// What became of one input.
#[derive(Default)]
struct Counted {
    bytes: u64,
    inputs: u64,
    decoded: u64,
    messages: u64,
}

fn fuzz(target: &Target) {
    let seeds = seeds(target.name);
    let mut found = Counted::default();
    for seed in seeds.iter().cycle().take(seeds.len() * ROUNDS_BEFORE) {
        run(target, seed, &mut found);
    }
    assert!(found.messages > 0, "no seed of {} can be read", target.name);
    let (wanted, seed) = (number("MQBRIDGE_FUZZ_BYTES", 1 << 20), number("MQBRIDGE_FUZZ_SEED", 1));
    let (mut random, mut data) = (Random::new(seed), Vec::new());
    let (began, mut rss_early) = (Instant::now(), 0);
    found = Counted::default();
    while found.bytes < wanted {
        mutated(&mut random, &seeds, &mut data);
        (target.repair)(&mut data);
        check(target, &data, &mut found);
        if rss_early == 0 && found.bytes > wanted / 4 {
            rss_early = resident_kb();
        }
    }
    let Counted { bytes, inputs, decoded, messages } = found;
    println!(
        "{:18} {bytes:>11} bytes, {inputs:>8} inputs, {decoded:>8} read ({messages} messages), {:.0} s, resident {rss_early} kB, then {} kB",
        target.name,
        began.elapsed().as_secs_f64(),
        resident_kb(),
    );
    assert!(resident_kb() < rss_early + MEMORY_GROWS_KB, "memory grows");
    assert!(decoded * 20 > inputs, "the damage is so great that nearly nothing of it is read");
}

/// Runs one input, and names it if it does harm.
fn check(target: &Target, data: &[u8], found: &mut Counted) {
    let mut memory = allocation_counter::AllocationInfo::default();
    let outcome = catch_unwind(AssertUnwindSafe(|| memory = allocation_counter::measure(|| run(target, data, found))));
    let hex = || data.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(outcome.is_ok(), "{} panics at {}", target.name, hex());
    assert!(memory.count_current == 0, "{} keeps {} bytes of {}", target.name, memory.bytes_current, hex());
    let limit = MEMORY + MEMORY_PER_BYTE * data.len() as u64;
    assert!(memory.bytes_max <= limit, "{} takes {} bytes for {} of {}", target.name, memory.bytes_max, data.len(), hex());
}

fn run(target: &Target, data: &[u8], found: &mut Counted) {
    found.bytes += data.len() as u64;
    found.inputs += 1;
    if let Ok(store) = (target.decode)(data) {
        found.decoded += 1;
        found.messages += store.len() as u64;
        look(&store);
        for encode in ENCODERS {
            encode(&store);
        }
    }
}

/// Every field can be read, and what is text is UTF-8: Python relies on it.
fn look(store: &Store) {
    for message in store.messages() {
        let key = match message.key() {
            Key::Text(text) => Some(text),
            Key::Bytes(_) | Key::None => None,
        };
        let texts = [key, message.msg_type(), message.origin(), message.defect()];
        let pairs = message.properties().flat_map(|(name, value)| [name, value]);
        for text in texts.into_iter().flatten().chain(pairs).chain(message.keys()) {
            assert!(std::str::from_utf8(text).is_ok(), "a text that is no UTF-8: {text:?}");
        }
        let bytes = [message.payload(), message.ordering_key(), message.attributes()];
        std::hint::black_box(bytes.into_iter().flatten().map(<[u8]>::len).sum::<usize>());
    }
}

/// What the process holds, where Linux tells; 0 elsewhere.
fn resident_kb() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).map_or(0, |pages| pages * 4)
}

mod harm {
    //! The harness sees what it is there for.

    use std::cell::RefCell;

    use mqbridge_native::message::Store;

    use super::{Counted, Target, check};

    thread_local! { static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) }; }

    fn harmful(decode: fn(&[u8]) -> mqbridge_native::Result<Store>) {
        let target = Target { name: "harmful", decode, repair: |_| () };
        check(&target, &[1, 2, 3], &mut Counted::default());
    }

    #[test]
    #[should_panic(expected = "harmful panics at 010203")]
    fn a_panic_is_named() {
        harmful(|data| panic!("{}", data.len()));
    }

    #[test]
    #[should_panic(expected = "keeps 40000 bytes of 010203")]
    fn kept_memory_is_counted() {
        KEPT.with_borrow_mut(|kept| kept.reserve(1));
        harmful(|_| {
            KEPT.with_borrow_mut(|kept| kept.push(Vec::with_capacity(40_000)));
            Ok(Store::new())
        });
    }

    #[test]
    #[should_panic(expected = "takes 1000000 bytes for 3 of 010203")]
    fn too_much_memory_is_seen() {
        harmful(|_| {
            drop(std::hint::black_box(Vec::<u8>::with_capacity(1_000_000)));
            Ok(Store::new())
        });
    }
}
