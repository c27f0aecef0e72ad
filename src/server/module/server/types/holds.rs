//! `sw-holder`: holds, by id.

use std::ffi::{c_int, CStr};

use swlimit_hold::{decode, encode, encode_reservation, Holds, VERSION};
use swlimit_window::Invalid;

use super::{Defragmentation, Value, ValueType};
use crate::server::effect::{Effect, HoldEffect, NEVER};
use crate::server::text::OwnText;
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
            let id = OwnText::new(b"last");
            let (token, end) = (self.last_token(), EPOCH + 1);
            let put = HoldEffect::Put { id: &id, units: 1, end, token, reserved: &[] };
            write(Effect::Holds { effect: put, instant: EPOCH, until: NEVER });
            write(Effect::Holds { effect: HoldEffect::Release { ids: &[&id] }, instant: EPOCH, until: NEVER });
        }
        for hold in self.iter() {
            let id = OwnText::new(hold.id());
            let reserved: Vec<OwnText> =
                hold.reserved().iter().map(|reservation| OwnText::new(&encode_reservation(reservation))).collect();
            let (units, end, token) = (hold.units(), hold.end(), hold.token());
            let effect = HoldEffect::Put { id: &id, units, end, token, reserved: &reserved };
            write(Effect::Holds { effect, instant: EPOCH, until: NEVER });
        }
    }

    fn relocate(&mut self, from: usize, defragmentation: &mut Defragmentation) -> Option<usize> {
        Holds::relocate(self, from, defragmentation)
    }
}
