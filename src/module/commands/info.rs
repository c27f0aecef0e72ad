//! `SWLIMIT.INFO key`

use swlimit_window::Window;

use super::request::{self, KEY};
use crate::arguments::{Parse, Words};
use crate::error::Error;
use crate::server::{self, Call, Command, Declaration, Keys, Reply};

/// Show what a key holds.
pub struct Info;

/// A key and nothing else.
struct InfoArguments;

impl Parse for InfoArguments {
    fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>, _max_subintervals: u64) -> Result<Self, Error> {
        words.word()?;
        words.end()?;
        Ok(Self)
    }
}

impl Command for Info {
    /// Not `fast`: the reply has every count.
    const DECLARATION: Declaration = Declaration {
        name: c"swlimit.info",
        summary: c"Shows the window, resolution, counts and block that a key holds.",
        complexity: c"O(C), C being the number of subintervals that hold a count",
        since: c"0.1.0",
        arity: 2,
        flags: c"readonly",
        categories: "read",
        keys: Keys::Read,
        parameters: &[request::KEY_PARAMETER],
    };

    fn run(call: &Call) -> Result<Reply, Error> {
        call.parse::<InfoArguments>()?;
        let key = call.read(&call.arguments()[KEY])?;
        let entry = key.entry().ok_or(Error::NoSuchKey)?;
        let window = entry.window();
        let geometry = window.map(Window::geometry);
        let blocked = entry.blocked_until();
        Ok(Reply::Info(Box::new(server::Info {
            numbers: [
                ("window", geometry.map_or(0, |geometry| geometry.window())),
                ("resolution", geometry.map_or(0, |geometry| geometry.resolution())),
                ("subintervals", geometry.map_or(0, |geometry| geometry.subintervals())),
                ("newest", window.map_or(0, Window::newest)),
                ("total", window.map_or(0, Window::total)),
                ("memory", entry.bytes() as u64),
                ("blocked", if blocked > call.clock() { blocked } else { 0 }),
            ],
            counts: window.map_or_else(Vec::new, server::Info::counts_of),
        })))
    }
}
