//! `sw-holder`: holds, by id.

use std::borrow::Cow;
use std::ffi::{c_int, CStr};

use swlimit_effect::Effect;
use swlimit_hold::{decode, encode, Holds, VERSION};
use swlimit_window::Invalid;

use super::{Defragmentation, Value, ValueType};
use crate::statistics::{Statistic, HOLD_KEYS};

static TYPE: ValueType = ValueType::new();

impl Value for Holds {
    const NAME: &'static CStr = c"sw-holder";
    const VERSION: c_int = VERSION;

    #[inline(always)]
    fn value_type() -> &'static ValueType {
        &TYPE
    }

    fn keys() -> &'static Statistic {
        &HOLD_KEYS
    }

    fn end(&self) -> u64 {
        Holds::end(self)
    }

    fn bytes(&self) -> usize {
        Holds::bytes(self)
    }

    fn allocations(&self) -> usize {
        Holds::allocations(self)
    }

    fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    fn decode(version: c_int, bytes: &[u8]) -> Result<Self, Invalid> {
        decode(version, bytes)
    }

    /// One effect a hold. If the largest token is that of a hold that has gone, one with it is put and released first.
    fn rewrite(&self, mut write: impl FnMut(Effect)) {
        const EPOCH: u64 = 0;
        if self.iter().all(|hold| hold.token() < self.last_token()) {
            let id = Cow::Borrowed(&b"last"[..]);
            let (token, end, reserved) = (self.last_token(), EPOCH + 1, Cow::default());
            write(Effect::Hold { id: id.clone(), end, token, units: 1, reserved, instant: EPOCH });
            write(Effect::Release { ids: vec![id], instant: EPOCH });
        }
        for hold in self.iter() {
            write(Effect::Hold {
                id: hold.id().into(),
                end: hold.end(),
                token: hold.token(),
                units: hold.units(),
                reserved: hold.reserved().into(),
                instant: EPOCH,
            });
        }
    }

    fn relocate(&mut self, from: usize, defragmentation: &mut Defragmentation) -> Option<usize> {
        Holds::relocate(self, from, defragmentation)
    }
}
