//! Values of all types, as an RDB file or RESTORE brings them: refused, or values like any other, which are written as they
//! were read, and which every command can decide on. The first byte says which type it is.

#![no_main]

use libfuzzer_sys::fuzz_target;
use swlimit_budget::Budget;
use swlimit_hold::Holds;
use swlimit_window::{Entry, Geometry, Quota, Request, Verdict, WarmUp, Window, MAX_EXACT};

fuzz_target!(|bytes: &[u8]| {
    match bytes {
        [0, bytes @ ..] => window(bytes),
        [1, bytes @ ..] => holds(bytes),
        [2, bytes @ ..] => budget(bytes),
        _ => {}
    }
});

/// Instants about those of a value.
fn instants(of: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let about = of.into_iter().flat_map(|instant| [instant.saturating_sub(1), instant, instant.saturating_add(1)]);
    about.chain([0, MAX_EXACT]).filter(|instant| *instant <= MAX_EXACT).collect()
}

fn window(bytes: &[u8]) {
    let decode = |bytes: &[u8]| swlimit_window::decode(swlimit_window::VERSION, bytes);
    let Ok(entry) = decode(bytes) else { return };
    let written = swlimit_window::encode(&entry);
    assert_eq!(swlimit_window::encode(&decode(&written).expect("what is written can be read")), written);

    let other = Geometry::new(60_000, 5_000).expect("a window");
    let own = entry.window().map_or(other, Window::geometry);
    let newest = entry.window().map_or(0, Window::newest);
    let total = entry.window().map_or(0, Window::total);
    for now in instants([newest, entry.end(), entry.blocked_until()]) {
        for (geometry, strict) in [(own, false), (own, true), (other, false)] {
            for limit in [1, total, total.saturating_add(1).min(MAX_EXACT), MAX_EXACT] {
                let quota = Quota { limit, geometry };
                let warm_up = WarmUp::new(600_000, 3).filter(|_| strict);
                decide(&entry, now, Request { quota, cost: 1, partial: true, strict, warm_up });
                decide(&entry, now, Request { quota, cost: limit.max(1), partial: false, strict, warm_up });
            }
        }
        for age in [None, Some(0), Some(now), Some(own.window())] {
            let mut refunded = entry.clone();
            let units = refunded.refund(1, age, now);
            let left = refunded.window().map_or(0, Window::total);
            assert!(units <= 1 && left + units <= total);
        }
    }
}

fn decide(entry: &Entry, now: u64, request: Request) {
    let peeked = Entry::peek(Some(entry), now, &request);
    let Ok(verdict) = Entry::decide(Some(entry), now, &request) else { return };
    match verdict {
        Verdict::Denied(decision) => assert_eq!((decision.granted, Ok(decision)), (0, peeked)),
        Verdict::Granted(grant) => {
            let mut after = entry.clone();
            let decision = grant.apply(&mut after);
            let least = if request.partial { 1 } else { request.cost };
            assert!((least..=request.cost).contains(&decision.granted));
            assert_eq!(decision.remaining + decision.granted, peeked.expect("a decision").remaining);
            swlimit_window::decode(swlimit_window::VERSION, &swlimit_window::encode(&after)).expect("a value");
        }
    }
}

fn holds(bytes: &[u8]) {
    let decode = |bytes: &[u8]| swlimit_hold::decode(swlimit_hold::VERSION, bytes);
    let Ok(holds) = decode(bytes) else { return };
    let written = swlimit_hold::encode(&holds);
    assert_eq!(swlimit_hold::encode(&decode(&written).expect("what is written can be read")), written);
    for now in instants([holds.end(), holds.last_end()]) {
        let live = holds.iter().filter(|hold| hold.end() > now);
        let (units, ids) = live.fold((0, Vec::new()), |(units, mut ids), hold| {
            ids.push(hold.id());
            (units + hold.units(), ids)
        });
        assert!(units <= MAX_EXACT && ids.iter().all(|id| holds.get(id, now).is_some()));
        for id in [b"new".as_slice()].into_iter().chain(ids.first().copied()) {
            let request = swlimit_hold::Request { limit: units.max(1), ttl: 1_000, id, cost: 1 };
            if let Ok(swlimit_hold::Verdict::Granted(grant)) = Holds::decide(Some(&holds), now, &request, 1_000) {
                let mut after = decode(&written).expect("read before");
                after.sweep(now);
                assert_eq!(grant.apply(&mut after, None).granted, 1);
                assert!(after.get(id, now).is_some());
            }
        }
        let mut swept = decode(&written).expect("read before");
        swept.sweep(now);
        assert_eq!(swept.len(), ids.len());
    }
}

fn budget(bytes: &[u8]) {
    let decode = |bytes: &[u8]| swlimit_budget::decode(swlimit_budget::VERSION, bytes);
    let Ok(budget) = decode(bytes) else { return };
    assert_eq!(decode(&swlimit_budget::encode(&budget)), Ok(budget));
    for now in instants([budget.since(), budget.until()]) {
        for limit in [1, budget.used(), MAX_EXACT] {
            let until = now.saturating_add(1_000).min(MAX_EXACT);
            let request = swlimit_budget::Request { limit, until, cost: 1, partial: false };
            let (count, decision) = Budget::decide(Some(&budget), now, &request);
            assert_eq!(decision.granted, count.map_or(0, |count| count.units()));
        }
        assert!(budget.refundable(MAX_EXACT, None, now) <= budget.used());
    }
}
