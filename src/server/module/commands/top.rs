//! `SWLIMIT.TOP [count]`

use swlimit_window::integer;

use crate::arguments::{Parse, Words};
use crate::configuration::MOST_SHOWN;
use crate::denials::Denied;
use crate::error::Error;
use crate::server::{Call, Command, Declaration, DeniedKey, Keys, Parameter, Reply};

/// Show the keys with the most denied requests.
pub struct Top;

/// The maximum number of keys to show.
struct TopArguments(usize);

const DEFAULT: usize = 10;

impl Parse for TopArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        let Some(word) = words.next() else { return Ok(Self(DEFAULT)) };
        words.end()?;
        let count = integer(word).filter(|count| (1..=MOST_SHOWN).contains(count)).ok_or(Error::Count)?;
        Ok(Self(count as usize))
    }
}

impl Command for Top {
    /// Not `fast`: it looks at all entries.
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.top",
        summary: c"Shows the keys with the most denied requests of this minute and the last one on this server.",
        complexity: c"O(E + L log E), E being swlimit.top-keys and L the number of keys that are looked at: those shown, and those \
            before them that the caller may not read",
        since: c"0.2.0",
        arity: -1,
        flags: c"readonly",
        categories: "read",
        keys: Keys::None,
        parameters: &[Parameter::integer(c"count").optional()],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        let TopArguments(count) = call.parse()?;
        let caller = call.caller();
        let keys = call.denied(|denied| {
            let readable = denied.filter(|Denied { key, .. }| caller.may_read(*key)).take(count);
            readable.map(DeniedKey::from).collect()
        });
        Ok(Reply::Denied(keys))
    }
}
