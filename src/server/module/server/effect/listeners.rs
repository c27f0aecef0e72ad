//! Whether anybody gets effects: a replica, the replication backlog, or an append-only file.
//!
//! Most servers of rate limits have none. `RM_Replicate` builds an effect's words and looks up its command before the
//! server finds that: a sixth of a grant. While nobody listens, `RM_ReplicateVerbatim` stands in for it, which asks the
//! server first and has nothing to build.
//!
//! Why nothing is lost (read in Redis 7.0, 7.2, 7.4, 8.0 and 8.6, and in Valkey 8.0, 8.1 and 9.1): what a server sends to
//! its backlog or append-only file is only ever read from a snapshot's instant on. A backlog begins with a new replication
//! id, so no replica asks for what is before its own copy; an append-only file that is switched on gets nothing before the
//! fork that writes its base. The server announces each snapshot to modules before it goes on with commands: `FORK_CHILD`
//! at a fork (full synchronization, disk-based, diskless or by a second channel; BGSAVE; an append-only file that is
//! switched on or rewritten), `PERSISTENCE` at a save without one (SAVE, SHUTDOWN). From then on effects are sent, until a
//! cron finds a primary without replicas, backlog and append-only file. That cron runs once to ten times a second,
//! between commands, so never within a transaction, a script or a waiting client's turn. A replica, which others may
//! follow as soon as it is promoted, and a cluster's node, whose slots may migrate, always send effects.
//!
//! Were a listener missed, its copy would get the client's own command, and count the same units by its own clock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use redis_module::raw;

use crate::server::context::Context;
use crate::server::release::Release;

/// Whether the server is one whose listeners are all found.
static KNOWN: AtomicBool = AtomicBool::new(false);
/// Whether nobody has listened at the last cron, nor been announced since.
static NONE: AtomicBool = AtomicBool::new(false);

/// Everything in which nobody listens, or nobody is found who does.
const MAY_LISTEN: u32 =
    raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_AOF | raw::REDISMODULE_CTX_FLAGS_CLUSTER;

/// Look for listeners from now on, if this server's are all found.
pub fn know(release: Release) {
    KNOWN.store(is_known(release), Ordering::Relaxed);
}

/// Whether the release was read. Valkey 9.2 saves without forking.
fn is_known(release: Release) -> bool {
    matches!(
        release,
        Release::Redis(7, _) | Release::Redis(8, 0..=6) | Release::Valkey(8, _) | Release::Valkey(9, 0..=1)
    )
}

/// Whether nobody gets effects.
#[inline(always)]
pub fn are_none() -> bool {
    NONE.load(Ordering::Relaxed)
}

/// Somebody may listen from now on.
pub fn expect() {
    NONE.store(false, Ordering::Relaxed);
}

/// How often to look in a second, at most: it takes the server's INFO about replication.
const LOOKS: u32 = 10;
/// The crons since the last look.
static CRONS: AtomicU32 = AtomicU32::new(0);

/// Look for listeners in some of the server's crons, of which there are so many in a second. No command is under way.
pub fn look_at_times(context: Context, crons_a_second: u32) {
    if is_time(crons_a_second) {
        look(context);
    }
}

fn is_time(crons_a_second: u32) -> bool {
    let crons = CRONS.load(Ordering::Relaxed) + 1;
    let is_time = crons >= crons_a_second / LOOKS;
    CRONS.store(if is_time { 0 } else { crons }, Ordering::Relaxed);
    is_time
}

fn look(context: Context) {
    let none = KNOWN.load(Ordering::Relaxed)
        && !context.has_flags(MAY_LISTEN)
        && context.replication([c"connected_slaves", c"repl_backlog_active"]) == [Some(0), Some(0)];
    NONE.store(none, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_as_often_however_many_crons_there_are() {
        for (crons_a_second, looks) in [(1, 1), (10, 10), (15, 15), (20, 10), (100, 10), (500, 10)] {
            CRONS.store(0, Ordering::Relaxed);
            assert_eq!((0..crons_a_second).filter(|_| is_time(crons_a_second)).count(), looks);
        }
    }

    #[test]
    fn releases_that_were_not_read_always_get_effects() {
        for known in [Release::Redis(7, 0), Release::Redis(8, 6), Release::Valkey(8, 0), Release::Valkey(9, 1)] {
            assert!(is_known(known));
        }
        for unknown in
            [Release::Redis(6, 3), Release::Redis(8, 7), Release::Valkey(9, 2), Release::Valkey(10, 0), Release::Other]
        {
            assert!(!is_known(unknown));
        }
    }
}
