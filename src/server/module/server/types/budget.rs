//! `sw-budget`: units of a period.

use std::ffi::{c_int, CStr};

use swlimit_budget::{decode, encode, Budget, VERSION};
use swlimit_effect::Effect;
use swlimit_window::Invalid;

use super::{Defragmentation, Value, ValueType};
use crate::statistics::{Statistic, BUDGET_KEYS};

static TYPE: ValueType = ValueType::new();

impl Value for Budget {
    const NAME: &'static CStr = c"sw-budget";
    const VERSION: c_int = VERSION;

    #[inline(always)]
    fn value_type() -> &'static ValueType {
        &TYPE
    }

    fn keys() -> &'static Statistic {
        &BUDGET_KEYS
    }

    fn end(&self) -> u64 {
        Budget::end(self)
    }

    fn bytes(&self) -> usize {
        std::mem::size_of::<Self>()
    }

    fn allocations(&self) -> usize {
        1
    }

    fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    fn decode(version: c_int, bytes: &[u8]) -> Result<Self, Invalid> {
        decode(version, bytes)
    }

    fn rewrite(&self, mut write: impl FnMut(Effect)) {
        write(Effect::Period { until: self.until(), units: self.used(), instant: self.since() });
    }

    fn relocate(&mut self, _from: usize, _defragmentation: &mut Defragmentation) -> Option<usize> {
        None
    }
}
