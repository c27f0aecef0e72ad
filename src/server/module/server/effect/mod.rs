//! The effects of commands, as replicas, the append-only file and its rewrite get them: `SWLIMIT.APPLY key effect
//! [key effect …]`. The client's own command never replicates.

pub(super) mod listeners;

use std::ffi::CStr;

use redis_module::raw;
use swlimit_effect::{Bytes, Effect, Expiry, Word};

use super::context::Context;
use super::slots::are_of_one_slot;
use super::text::{OwnText, Text};

const APPLY: &CStr = c"SWLIMIT.APPLY";
/// A string, and a buffer with its length.
const PAIR: &CStr = c"sb";
/// A vector of strings and its length.
const VECTOR: &CStr = c"v";

/// Replicate an effect on one key, also into the append-only file.
#[inline(always)]
pub(super) fn replicate(context: Context, key: &Text, effect: Effect, expiry: Expiry) {
    if listeners::are_none() {
        return verbatim(context);
    }
    replicate_word(context, key, &Word { effect, expiry }.write());
}

#[inline(always)]
fn replicate_word(context: Context, key: &Text, bytes: &[u8]) {
    let (name, format, word) = (APPLY.as_ptr(), PAIR.as_ptr(), bytes.as_ptr());
    // SAFETY: a valid context; a string that is alive, and a buffer with its length.
    unsafe { api!(RedisModule_Replicate(context.raw(), name, format, key.raw(), word, bytes.len())) };
}

/// Replicate the command as it is.
#[inline(always)]
pub(super) fn verbatim(context: Context) {
    // SAFETY: the context of a command's handler.
    unsafe { api!(RedisModule_ReplicateVerbatim(context.raw())) };
}

/// Write an effect to an append-only file that is being rewritten: the server adds the key's expiry.
///
/// # Safety
/// `io` is what the server writes to.
pub(super) unsafe fn write(io: *mut raw::RedisModuleIO, key: &Text, effect: Effect) {
    let bytes = Word { effect, expiry: Expiry::At(0) }.write();
    let (name, format, word) = (APPLY.as_ptr(), PAIR.as_ptr(), bytes.as_ptr());
    // SAFETY: the caller's promise; a string that is alive, and a buffer with its length.
    unsafe { api!(RedisModule_EmitAOF(io, name, format, key.raw(), word, bytes.len())) };
}

/// The effects of one decision, on any number of keys.
#[derive(Default)]
pub struct Effects<'a> {
    words: Vec<(&'a Text, Bytes)>,
    is_empty: bool,
}

impl<'a> Effects<'a> {
    /// None yet.
    pub fn new() -> Self {
        Self { words: Vec::new(), is_empty: true }
    }

    /// Add an effect.
    pub fn add(&mut self, key: &'a Text, effect: Effect, expiry: Expiry) {
        self.is_empty = false;
        if !listeners::are_none() {
            self.words.push((key, Word { effect, expiry }.write()));
        }
    }

    /// Replicate all in one command, also into the append-only file; one for
    /// each slot, so that they can go into a cluster.
    pub(super) fn replicate(self, context: Context) {
        if self.is_empty {
            return;
        }
        if listeners::are_none() {
            return verbatim(context);
        }
        for same in self.words.chunk_by(|(one, _), (other, _)| are_of_one_slot(one.bytes(), other.bytes())) {
            if let [(key, word)] = same {
                replicate_word(context, key, word);
                continue;
            }
            let words: Vec<_> = same.iter().map(|(_, word)| OwnText::new(word)).collect();
            let vector: Vec<_> = same.iter().zip(&words).flat_map(|((key, _), word)| [key.raw(), word.raw()]).collect();
            let (name, format, first) = (APPLY.as_ptr(), VECTOR.as_ptr(), vector.as_ptr());
            // SAFETY: a valid context; strings that are alive, of which there are as many in the vector as it says.
            unsafe { api!(RedisModule_Replicate(context.raw(), name, format, first, vector.len())) };
        }
    }
}
