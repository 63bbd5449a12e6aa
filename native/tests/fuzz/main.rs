//! Fuzzes every decoder with damaged bytes, and every encoder with the decoded messages. Nothing may panic, leak memory, or use
//! more memory than the size of the input explains.
//!
//! `cargo test` tries a megabyte per decoder. `make fuzz-native` sets `MQBRIDGE_FUZZ_BYTES` to a larger number of bytes, and runs
//! also under AddressSanitizer. `MQBRIDGE_FUZZ_SEED`, a number, selects other random inputs.

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

use mutate::{Random, mutate_seed};
use targets::{ENCODERS, Target};

/// Limit of the memory in use for one input: BASE_MEMORY_BYTES, and MEMORY_PER_BYTE for each byte of the input. A decoder that
/// exceeds it has allocated as much as a damaged number in the input announces.
const MEMORY_PER_BYTE: u64 = 256;
const BASE_MEMORY_BYTES: u64 = 64 << 10;
/// Limit for the growth of the process's resident memory after the first quarter of a run. It finds leaks that the allocation
/// counter cannot see.
const MAX_RSS_GROWTH_KB: u64 = 32 << 10;
/// How often each undamaged seed is tried before memory is measured, so that tables exist that are created on first use.
const WARM_UP_ROUNDS: usize = 2;

/// Returns the number in an environment variable, or the default if it is not set.
fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

/// Returns the seeds of a target: valid inputs, which are then damaged.
///
/// Its file has one line of hexadecimal digits per seed, and is written by `python -m tests.fuzz.seeds --write`.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fuzz/seeds/{name}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines()
        .map(|line| (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap()).collect())
        .collect()
}

/// Counts of a run: the bytes and the number of the inputs, how many of the inputs were decoded, and the messages in them.
#[derive(Default)]
struct Counts {
    bytes: u64,
    inputs: u64,
    decoded: u64,
    messages: u64,
}

/// Fuzzes a target until the inputs have the requested number of bytes.
fn fuzz(target: &Target) {
    let seeds = seeds(target.name);
    let mut counts = Counts::default();
    for seed in seeds.iter().cycle().take(seeds.len() * WARM_UP_ROUNDS) {
        run(target, seed, &mut counts);
    }
    assert!(counts.messages > 0, "no seed of {} can be decoded", target.name);
    let (byte_limit, seed) = (number_from_env("MQBRIDGE_FUZZ_BYTES", 1 << 20), number_from_env("MQBRIDGE_FUZZ_SEED", 1));
    let (mut random, mut data) = (Random::new(seed), Vec::new());
    let (began, mut rss_early) = (Instant::now(), 0);
    counts = Counts::default();
    while counts.bytes < byte_limit {
        mutate_seed(&mut random, &seeds, &mut data);
        (target.repair)(&mut data);
        check(target, &data, &mut counts);
        if rss_early == 0 && counts.bytes > byte_limit / 4 {
            rss_early = resident_kb();
        }
    }
    let Counts { bytes, inputs, decoded, messages } = counts;
    println!(
        "{:18} {bytes:>11} bytes, {inputs:>8} inputs, {decoded:>8} decoded ({messages} messages), \
         {:.0} s, resident {rss_early} kB, then {} kB",
        target.name,
        began.elapsed().as_secs_f64(),
        resident_kb(),
    );
    assert!(resident_kb() < rss_early + MAX_RSS_GROWTH_KB, "the process's memory grows by more than {MAX_RSS_GROWTH_KB} kB");
    assert!(decoded * 20 > inputs, "less than a twentieth of the inputs can be decoded: they are damaged too much");
}

/// Tries one input; fails, with the input in the message, if it panics, keeps memory, or takes too much memory.
fn check(target: &Target, data: &[u8], counts: &mut Counts) {
    let mut memory = allocation_counter::AllocationInfo::default();
    let outcome = catch_unwind(AssertUnwindSafe(|| memory = allocation_counter::measure(|| run(target, data, counts))));
    let hex = || data.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert!(outcome.is_ok(), "{} panics at {}", target.name, hex());
    assert!(memory.count_current == 0, "{} keeps {} bytes of {}", target.name, memory.bytes_current, hex());
    let limit = BASE_MEMORY_BYTES + MEMORY_PER_BYTE * data.len() as u64;
    assert!(memory.bytes_max <= limit, "{} takes {} bytes for {} of {}", target.name, memory.bytes_max, data.len(), hex());
}

/// Decodes one input, and encodes its messages with every encoder.
fn run(target: &Target, data: &[u8], counts: &mut Counts) {
    counts.bytes += data.len() as u64;
    counts.inputs += 1;
    if let Ok(store) = (target.decode)(data) {
        counts.decoded += 1;
        counts.messages += store.len() as u64;
        read_all_fields(&store);
        for encode in ENCODERS {
            encode(&store);
        }
    }
}

/// Reads every field of every message; fails if a text is not UTF-8, because the Python bindings rely on that.
fn read_all_fields(store: &Store) {
    for message in store.messages() {
        let key = match message.key() {
            Key::Text(text) => Some(text),
            Key::Bytes(_) | Key::None => None,
        };
        let texts = [key, message.msg_type(), message.origin(), message.defect()];
        let pairs = message.properties().flat_map(|(name, value)| [name, value]);
        for text in texts.into_iter().flatten().chain(pairs).chain(message.keys()) {
            assert!(std::str::from_utf8(text).is_ok(), "a text that is not UTF-8: {text:?}");
        }
        let bytes = [message.payload(), message.ordering_key(), message.attributes()];
        std::hint::black_box(bytes.into_iter().flatten().map(<[u8]>::len).sum::<usize>());
    }
}

/// Returns the resident memory of the process in kB, for pages of 4 kB; 0 on systems other than Linux.
fn resident_kb() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).map_or(0, |pages| pages * 4)
}

mod harm {
    //! Tests of the harness: it detects panics, leaks, and too much memory.

    use std::cell::RefCell;

    use mqbridge_native::message::Store;

    use super::{Counts, Target, check};

    thread_local! { static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) }; }

    /// Tries one input with this decoder.
    fn check_decoder(decode: fn(&[u8]) -> mqbridge_native::Result<Store>) {
        let target = Target { name: "harmful", decode, repair: |_| () };
        check(&target, &[1, 2, 3], &mut Counts::default());
    }

    #[test]
    #[should_panic(expected = "harmful panics at 010203")]
    fn a_panic_is_reported_with_its_input() {
        check_decoder(|data| panic!("{}", data.len()));
    }

    #[test]
    #[should_panic(expected = "keeps 40000 bytes of 010203")]
    fn kept_memory_is_reported() {
        KEPT.with_borrow_mut(|kept| kept.reserve(1));
        check_decoder(|_| {
            KEPT.with_borrow_mut(|kept| kept.push(Vec::with_capacity(40_000)));
            Ok(Store::new())
        });
    }

    #[test]
    #[should_panic(expected = "takes 1000000 bytes for 3 of 010203")]
    fn too_much_memory_is_reported() {
        check_decoder(|_| {
            drop(std::hint::black_box(Vec::<u8>::with_capacity(1_000_000)));
            Ok(Store::new())
        });
    }
}
