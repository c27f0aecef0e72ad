//! The rights on the server that a configuration needs.

use std::collections::{BTreeMap, BTreeSet};

use super::keys;
use crate::config::limits::{Domain, Limit, Limits, Per, Rule};
use crate::config::policy::Mode;

/// The suffix of keys of checks, which no limit has.
const CHECKED: &str = "swlimit:connected";

/// One key of each domain, and the rights that the domain's limits need on it, as ACLs name them.
pub fn needed(limits: &Limits) -> Vec<(String, Vec<&'static str>)> {
    let mut domains: BTreeMap<&str, (String, Vec<&Limit>)> = BTreeMap::new();
    for (domain, rule) in limits.rules() {
        let counted = rule.limits.iter().filter(|limit| limit.policy.mode != Mode::Local);
        let (_, all) = domains.entry(&domain.name).or_insert_with(|| (key(domain, rule), Vec::new()));
        all.extend(counted);
    }
    domains.into_values().map(|(key, limits)| (key, rights(&limits).into_iter().collect())).collect()
}

/// A key like those of a rule.
fn key(domain: &Domain, rule: &Rule) -> String {
    match rule.levels() {
        [] => keys::of_policy("", &domain.name, &rule.name, "", CHECKED),
        levels => {
            let pairs = levels.iter().map(|level| (level.key.as_bytes(), level.value.as_bytes()));
            keys::name("", &domain.name, domain.hash_tag.as_deref(), pairs, CHECKED)
        }
    }
}

/// Whether limits are not decided where the user lacks this right.
pub fn is_needed_to_decide(right: &str) -> bool {
    !matches!(
        right,
        "client|tracking"
            | "client|id"
            | "pttl"
            | "time"
            | "info"
            | "ping"
            | "swlimit.peek"
            | "swlimit.refund"
            | "swlimit.release"
            | "swlimit.block"
            | "swlimit.info"
    )
}

/// What does not work without a right.
pub fn without(right: &str) -> &'static str {
    match right {
        "client|tracking" | "client|id" | "pttl" => "denials are remembered for max_untracked_age only",
        "time" => "mode leased decides as cached; by the script, this machine's clock decides",
        "info" => "mode leased decides as cached, and evictions are not noticed",
        "ping" => "the breaker is slower to see a dead connection",
        "swlimit.peek" => "hits of 0, denials of several limits and explain are errors",
        "swlimit.refund" => "units of denied requests and of leases do not come back",
        "swlimit.release" => "holds end by their ttl only",
        "swlimit.block" => "denials block no key",
        "swlimit.info" => "periods and concurrency cannot be looked up",
        "swlimit.allow" => "limits with a window are errors",
        "swlimit.record" => "limits with record, and of mode eventual, are errors",
        "swlimit.budget" => "limits with a period are errors",
        "swlimit.hold" => "limits with concurrency are errors",
        "swlimit.mallow" | "swlimit.admit" => "requests that match several limits are errors",
        key if key.starts_with('~') => "limits with such keys are errors",
        _ => "limits are errors",
    }
}

fn rights(limits: &[&Limit]) -> BTreeSet<&'static str> {
    let mut needed = BTreeSet::from(["ping"]);
    for limit in limits {
        needed.extend(match limit.per {
            Per::Window(_) => &["swlimit.peek", "swlimit.refund"][..],
            Per::Period(_) => &["swlimit.budget", "swlimit.info", "swlimit.refund"],
            Per::Hold(_) => &["swlimit.hold", "swlimit.info", "swlimit.release"],
        });
        needed.extend(match limit.policy.mode {
            _ if !limit.per.is_window() => &[][..],
            Mode::Cached => &["swlimit.allow", "client|tracking", "client|id", "pttl"],
            Mode::Leased => &["swlimit.allow", "client|tracking", "client|id", "pttl", "time", "info"],
            Mode::Eventual => &["swlimit.record"],
            _ => &["swlimit.allow"],
        });
        needed.extend(limit.record.then_some("swlimit.record"));
        needed.extend(limit.block.map(|_| "swlimit.block"));
    }
    if limits.len() > 1 {
        let is_mixed = limits.iter().any(|limit| !limit.per.is_window());
        needed.insert(if is_mixed { "swlimit.admit" } else { "swlimit.mallow" });
    }
    needed
}
