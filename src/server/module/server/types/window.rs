//! `sw-window`: counts of a sliding window, a block, or both.

use std::ffi::{c_int, CStr};

use swlimit_hold::Relocate;
use swlimit_window::{decode, encode, Count, Entry, Invalid, MAX_EXACT, VERSION};

use super::{Defragmentation, Value, ValueType};
use crate::server::effect::{milliseconds, Effect, NEVER};
use crate::server::text::OwnText;
use crate::statistics::{Statistic, KEYS};

static TYPE: ValueType = ValueType::new();

impl Value for Entry {
    const NAME: &'static CStr = c"sw-window";
    const VERSION: c_int = VERSION;

    #[inline(always)]
    fn value_type() -> &'static ValueType {
        &TYPE
    }

    fn keys() -> &'static Statistic {
        &KEYS
    }

    #[inline(always)]
    fn end(&self) -> u64 {
        Entry::end(self)
    }

    #[inline(always)]
    fn bytes(&self) -> usize {
        Entry::bytes(self)
    }

    fn allocations(&self) -> usize {
        Entry::allocations(self)
    }

    fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    fn decode(version: c_int, bytes: &[u8]) -> Result<Self, Invalid> {
        decode(version, bytes)
    }

    /// One effect a count, oldest first, and one for the block. The limit plays no part in recording.
    fn rewrite(&self, mut write: impl FnMut(Effect)) {
        if let Some(window) = self.window() {
            let geometry = window.geometry();
            let quota = [OwnText::new(b"0"), milliseconds(geometry.window()), milliseconds(geometry.resolution())];
            for Count { subinterval, units } in window.counts() {
                let instant = geometry.start_of(subinterval);
                let quota = OwnText::borrow_all(&quota);
                write(Effect::Record { quota, units, age: None, instant, until: NEVER });
            }
        }
        if let until @ 1.. = self.blocked_until() {
            // The shortest block that ends then, begun at an instant that commands take.
            let instant = (until - 1).min(MAX_EXACT);
            write(Effect::Block { duration: until - instant, instant, until: NEVER });
        }
    }

    fn relocate(&mut self, _from: usize, defragmentation: &mut Defragmentation) -> Option<usize> {
        let own = std::cell::RefCell::new(defragmentation);
        Entry::relocate(
            self,
            |block| own.borrow_mut().relocate_box(block),
            |words| own.borrow_mut().list(words.into_vec()).into_boxed_slice(),
        );
        None
    }
}
