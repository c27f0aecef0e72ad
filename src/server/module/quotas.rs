//! Quotas that callers have asked for: most callers ask for the same few again and again, and comparing their words takes a
//! third of the time of reading them.

use std::cell::Cell;

use swlimit_window::Quota;

/// `limit window resolution`, as a caller wrote it.
pub type Words<'a> = [&'a [u8]; 3];

/// A quota, and its words.
#[derive(Clone, Copy)]
struct Known {
    words: Packed,
    quota: Quota,
}

/// Words of at most 16 bytes each: the first eight and the last eight of each, and all lengths.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Packed {
    ends: [[u64; 2]; 3],
    lengths: u64,
}

/// A power of two.
const PLACES: usize = 16;

thread_local! {
    static KNOWN: [Cell<Option<Known>>; PLACES] = const { [const { Cell::new(None) }; PLACES] };
}

/// The quota of these words: one that was read before, else what `read` makes of them.
#[inline(always)]
pub fn quota<E>(words: Words, read: impl FnOnce(Words) -> Result<Quota, E>) -> Result<Quota, E> {
    let Some(packed) = Packed::of(words) else { return read(words) };
    KNOWN.with(|places| {
        let place = &places[packed.place()];
        match place.get() {
            Some(known) if known.words == packed => Ok(known.quota),
            _ => {
                let quota = read(words)?;
                place.set(Some(Known { words: packed, quota }));
                Ok(quota)
            }
        }
    })
}

impl Packed {
    #[inline(always)]
    fn of(words: Words) -> Option<Self> {
        let mut packed = Self { ends: [[0; 2]; 3], lengths: 0 };
        for (word, ends) in words.iter().zip(&mut packed.ends) {
            *ends = pack(word)?;
            packed.lengths = packed.lengths << 8 | word.len() as u64;
        }
        Some(packed)
    }

    #[inline(always)]
    fn place(&self) -> usize {
        let mixed = self.ends[0][1] ^ self.ends[1][0].rotate_left(24) ^ self.ends[2][0].rotate_left(48) ^ self.lengths;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES
    }
}

/// The first and the last bytes of a word, which overlap in most.
#[inline(always)]
fn pack(word: &[u8]) -> Option<[u64; 2]> {
    if let (Some(first), Some(last)) = (word.first_chunk(), word.last_chunk()) {
        return (word.len() <= 16).then(|| [u64::from_le_bytes(*first), u64::from_le_bytes(*last)]);
    }
    if let (Some(first), Some(last)) = (word.first_chunk(), word.last_chunk()) {
        return Some([u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into()]);
    }
    let (first, last) = (*word.first()?, *word.last()?);
    Some([first.into(), u64::from(word[word.len() / 2]) << 8 | u64::from(last)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use swlimit_window::{integer, Geometry};

    fn read([limit, ..]: Words) -> Result<Quota, ()> {
        let geometry = Geometry::new(1000, 1000).map_err(|_| ())?;
        integer(limit).map(|limit| Quota { limit, geometry }).ok_or(())
    }

    /// Of any length, with the same beginning and end, and more of them than there are places.
    #[test]
    fn other_words_are_another_quota() {
        for _ in 0..2 {
            for length in 1..=20 {
                for place in 0..length {
                    for digit in [b'1', b'2'] {
                        let mut word = vec![b'1'; length];
                        word[place] = digit;
                        for other in [&b"1"[..], b"11", &word] {
                            let words = [&word[..], other, b"1"];
                            assert_eq!(quota(words, read), read(words));
                            let words = [other, &word[..], b"1"];
                            assert_eq!(quota(words, read), read(words));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_read_is_not_read_again() {
        let words = [&b"1"[..], b"60000ms", b"1000ms"];
        assert_eq!(quota([b"x", b"1", b"1"], |_| Err(())), Err(()));
        let known = quota(words, read);
        assert_eq!(quota(words, |_| Err(())), known);
        assert_eq!(quota([b"1", b"60000ms", b"1000MS"], |_| Err(())), Err(()));
    }
}
