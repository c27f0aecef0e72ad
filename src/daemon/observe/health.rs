//! What is so of this process and its servers, in words, for health checks.

use super::refusals;
use crate::core::{rights, Checked, ServerState, State};

/// `OK`, or what is wrong, a sentence a line: what the last check has found, and how each server is.
pub fn text(checked: Option<&Checked>, servers: &[ServerState]) -> String {
    let (unusable, lacks) = checked.map(|checked| (checked.unusable(), &*checked.lacks)).unwrap_or_default();
    let mut wrong: Vec<_> = unusable.map(|reason| format!("no limit is counted: {reason}")).into_iter().collect();
    for server in servers {
        let address = &server.address;
        match (server.state, server.reason) {
            (State::Unavailable, reason) => {
                let reason = reason.map_or("other", |reason| reason.as_str());
                wrong.push(format!("{address} is unavailable ({reason}): on_failure decides"));
            }
            (State::Slow, _) => wrong.push(format!("{address} is slow: on_failure decides where replies are late")),
            _ => {}
        }
        if let Some(eviction) = &server.eviction {
            wrong.push(format!("{address} evicts keys ({}), and limits with them: use noeviction", eviction.policy));
        }
    }
    wrong.extend(lacks.iter().map(|right| format!("the user lacks {right}: {}", rights::without(right))));
    if let Some((rate, _)) = refusals::recent() {
        wrong.push(format!("the server refuses {rate} commands a second: the log says why"));
    }
    match wrong.is_empty() {
        true => "OK\n".into(),
        false => format!("OK, but {}\n", wrong.join("\n")),
    }
}
