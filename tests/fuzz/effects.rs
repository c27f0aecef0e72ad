//! The words by which replicas and append-only files get what happened: refused, or written as they were read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use swlimit_effect::{Word, MAX_WORD};

fuzz_target!(|bytes: &[u8]| {
    let Ok(word) = Word::read(bytes) else { return };
    let written = word.write();
    // Bytes of ids may be escaped that were not.
    if written.len() <= MAX_WORD {
        assert_eq!(Word::read(&written).as_ref(), Ok(&word));
    }
    assert!(word.effect.added() <= swlimit_window::MAX_EXACT);
});
