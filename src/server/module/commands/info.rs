//! `SWLIMIT.INFO key`

use std::num::NonZeroU64;

use swlimit_budget::Budget;
use swlimit_hold::Holds;
use swlimit_window::{Entry, Window};

use super::request::{self, KEY};
use crate::arguments::{Parse, Words};
use crate::error::Error;
use crate::server::{self, AnyKey, Call, Command, Declaration, Keys, Reply, Value};

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
        summary: c"Shows what a key holds: the counts and block of a window, holds, or a budget.",
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
        let now = call.clock();
        let key = call.read_any(&call.arguments()[KEY])?.ok_or(Error::NoSuchKey)?;
        let info = match &key {
            AnyKey::Window(key) => key.entry().map(|entry| of_window(entry, now)),
            AnyKey::Holds(key) => key.entry().map(|holds| of_holds(holds, now)),
            AnyKey::Budget(key) => key.entry().map(of_budget),
        };
        Ok(Reply::Info(Box::new(info.ok_or(Error::NoSuchKey)?)))
    }
}

fn of_window(entry: &Entry, now: u64) -> server::Info {
    let window = entry.window();
    let geometry = window.map(Window::geometry);
    let blocked = entry.blocked_until();
    server::Info {
        numbers: vec![
            ("window", geometry.map_or(0, |geometry| geometry.window())),
            ("resolution", geometry.map_or(0, |geometry| geometry.resolution())),
            ("subintervals", geometry.map_or(0, |geometry| geometry.subintervals())),
            ("newest", window.map_or(0, Window::newest)),
            ("total", window.map_or(0, Window::total)),
            ("memory", entry.bytes() as u64),
            ("blocked", if blocked > now { blocked } else { 0 }),
            ("since", entry.since().map_or(0, NonZeroU64::get)),
        ],
        counts: Some(window.map_or_else(Vec::new, server::Info::counts_of)),
    }
}

fn of_holds(holds: &Holds, now: u64) -> server::Info {
    let live = holds.live(now);
    server::Info {
        numbers: vec![
            ("holds", live.count),
            ("units", live.units),
            ("end", if live.count > 0 { holds.last_end() } else { 0 }),
            ("token", holds.last_token()),
            ("memory", holds.bytes() as u64),
        ],
        counts: None,
    }
}

fn of_budget(budget: &Budget) -> server::Info {
    server::Info {
        numbers: vec![
            ("used", budget.used()),
            ("since", budget.since()),
            ("until", budget.until()),
            ("memory", budget.bytes() as u64),
        ],
        counts: None,
    }
}
