//! `key limit window resolution [options]`, which three commands share.

use std::ops::Range;

use crate::arguments::{Keyword, Options, Quota, Words};
use crate::error::Error;
use crate::server::{Parameter, Parse};
use swlimit_window::Demand;

/// Where the key stands among a call's arguments.
pub const KEY: usize = 1;
/// Where `limit window resolution` stand.
pub const QUOTA: Range<usize> = 2..5;

/// A decision that a client asks for. `PARTIAL` says whether it may ask for a part of its cost.
pub struct Request<const PARTIAL: bool> {
    /// The limit and its window.
    pub quota: Quota,
    /// Cost, strictness, instant.
    pub options: Options,
}

impl<const PARTIAL: bool> Request<PARTIAL> {
    /// What is demanded of the window.
    pub fn demand(&self) -> Demand {
        self.quota.demand(&self.options)
    }
}

impl<const PARTIAL: bool> Parse for Request<PARTIAL> {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        let quota = words.quota(max_subintervals)?;
        let accepted: &[Keyword] = match PARTIAL {
            true => &[Keyword::Cost, Keyword::Partial, Keyword::Strict, Keyword::At],
            false => &[Keyword::Cost, Keyword::Strict, Keyword::At],
        };
        Ok(Self { quota, options: words.options(accepted)? })
    }
}

/// How `key limit window resolution [COST n] [PARTIAL] [STRICT] [AT unix-ms]` is documented.
pub const PARAMETERS: &[Parameter] = &[
    Parameter::Key(c"key"),
    Parameter::Integer(c"limit"),
    Parameter::Word(c"window"),
    Parameter::Word(c"resolution"),
    Parameter::IntegerAfter(c"COST", c"n"),
    Parameter::Flag(c"partial", c"PARTIAL"),
    Parameter::Flag(c"strict", c"STRICT"),
    Parameter::UnixTimeAfter(c"AT", c"unix-ms"),
];
