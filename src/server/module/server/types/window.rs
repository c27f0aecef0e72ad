//! `sw-window`: counts of a sliding window, a block, or both, and since when the key is in use.

use std::ffi::{c_int, CStr};

use swlimit_effect::Effect;
use swlimit_hold::Relocate;
use swlimit_window::{decode, encode, Count, Entry, Invalid, VERSION};

use super::{Defragmentation, Value, ValueType};
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

    /// One effect a count, oldest first, and one for the block. The first says since when the key is in use.
    fn rewrite(&self, mut write: impl FnMut(Effect)) {
        if let Some(window) = self.window() {
            let geometry = window.geometry();
            let mut since = self.since();
            for Count { subinterval, units } in window.counts() {
                let instant = geometry.start_of(subinterval);
                write(Effect::Count { geometry, units, instant, dated: None, since: since.take() });
            }
        }
        if let until @ 1.. = self.blocked_until() {
            write(Effect::Block { until });
        }
    }

    fn relocate(&mut self, _from: usize, defragmentation: &mut Defragmentation) -> Option<usize> {
        let own = std::cell::RefCell::new(defragmentation);
        Entry::relocate(
            self,
            |marks| own.borrow_mut().relocate_box(marks),
            |words| own.borrow_mut().list(words.into_vec()).into_boxed_slice(),
        );
        None
    }
}
