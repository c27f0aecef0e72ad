//! Holds against an independent model: a plain list, scanned again for each answer.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use swlimit_window::{Geometry, MAX_EXACT};

use crate::*;

#[derive(Clone, Debug, PartialEq)]
struct Plain {
    id: Vec<u8>,
    units: u64,
    end: u64,
    token: u64,
}

/// Nothing is clever here: all is found by looking at all.
#[derive(Clone, Debug, Default)]
struct Model {
    last: u64,
    stored: Vec<Plain>,
}

impl Model {
    fn live(&self, now: u64) -> impl Iterator<Item = &Plain> {
        self.stored.iter().filter(move |hold| now < hold.end)
    }

    fn units(&self, now: u64) -> u64 {
        self.live(now).map(|hold| hold.units).sum()
    }

    /// The decision, or what is refused: the units of the live hold, or that there are too many.
    fn hold(&mut self, now: u64, request: &Request, max: u64) -> Result<Decision, Refusal> {
        let Request { limit, ttl, id, cost } = *request;
        let granted = |model: &Self, token| Decision {
            granted: cost,
            limit,
            remaining: limit.saturating_sub(model.units(now)),
            retry_after: Some(0),
            expires_after: ttl,
            token,
        };
        if let Some(place) = self.stored.iter().position(|hold| hold.id == id && now < hold.end) {
            let Plain { units, token, .. } = self.stored[place];
            if units != cost {
                return Err(Refusal::OtherUnits(units));
            }
            self.stored[place].end = now + ttl;
            self.stored.retain(|hold| now < hold.end);
            return Ok(granted(self, token));
        }
        if self.units(now) + cost > limit {
            let fits = |at: &u64| self.units(*at) + cost <= limit;
            let retry_after = (now..now + 10_000).find(fits).map(|at| at - now).filter(|_| cost <= limit);
            let remaining = limit.saturating_sub(self.units(now));
            return Ok(Decision { granted: 0, limit, remaining, retry_after, expires_after: 0, token: 0 });
        }
        if self.live(now).count() as u64 >= max {
            return Err(Refusal::TooMany);
        }
        self.stored.retain(|hold| now < hold.end);
        self.last = (self.last + 1).max(now * 1000);
        self.stored.push(Plain { id: id.to_vec(), units: cost, end: now + ttl, token: self.last });
        Ok(granted(self, self.last))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Hold { limit: u64, ttl: u64, id: u8, cost: u64 },
    Release(Vec<u8>),
    Renew(Vec<u8>, u64),
    Put { id: u8, units: u64, end: u64, token: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let ids = || vec(0..24u8, 1..9);
    prop_oneof![
        6 => (0..40u64, 1..300u64, 0..24u8, 1..6u64)
            .prop_map(|(limit, ttl, id, cost)| Step::Hold { limit, ttl, id, cost }),
        3 => ids().prop_map(Step::Release),
        2 => (ids(), 1..300u64).prop_map(|(ids, ttl)| Step::Renew(ids, ttl)),
        1 => (0..24u8, 1..6u64, 1..400u64, 1..400_000u64)
            .prop_map(|(id, units, end, token)| Step::Put { id, units, end, token }),
    ]
}

/// Steps with the time that passes before each; it also runs backwards.
fn steps() -> impl Strategy<Value = Vec<(Step, i64)>> {
    vec((step(), prop_oneof![4 => 0..30i64, 1 => -60..0i64]), 0..120)
}

fn name(id: u8) -> Vec<u8> {
    // Of several lengths, some the beginning of others.
    vec![b'a' + id % 3; 1 + usize::from(id / 3)]
}

fn stored(holds: &Holds) -> Vec<Plain> {
    let plain = |hold: &Hold| Plain { id: hold.id().into(), units: hold.units(), end: hold.end(), token: hold.token() };
    holds.iter().map(plain).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Default::default()
    })]

    #[test]
    fn agrees_with_a_plain_list(steps in steps(), max in 3..30u64) {
        let (mut holds, mut model, mut now) = (Holds::default(), Model::default(), 50u64);
        for (step, passed) in steps {
            now = u64::max(1, now.saturating_add_signed(passed));
            match step {
                Step::Hold { limit, ttl, id, cost } => {
                    let id = name(id);
                    let request = Request { limit, ttl, id: &id, cost };
                    let looked = Holds::peek(Some(&holds), now, &request);
                    let last = holds.last_token();
                    let decision = match Holds::decide(Some(&holds), now, &request, max) {
                        Ok(Verdict::Granted(grant)) => {
                            holds.sweep(now);
                            let decision = grant.apply(&mut holds, None);
                            prop_assert!(decision.token > last);
                            Ok(decision)
                        }
                        Ok(Verdict::Renewed(decision)) => {
                            holds.sweep(now);
                            holds.renew(&id, now + ttl);
                            Ok(decision)
                        }
                        Ok(Verdict::Denied(decision)) => Ok(decision),
                        Err(refusal) => Err(refusal),
                    };
                    prop_assert_eq!(decision, model.hold(now, &request, max));
                    if let Ok(Decision { granted, .. }) = decision {
                        prop_assert_eq!(looked.granted, granted);
                    }
                }
                Step::Release(ids) => {
                    let live = ids.iter().any(|id| holds.get(&name(*id), now).is_some());
                    if live {
                        holds.sweep(now);
                        model.stored.retain(|hold| now < hold.end);
                        let names: Vec<_> = ids.into_iter().map(name).collect();
                        let mut freed = vec![];
                        for id in &names {
                            let place = model.stored.iter().position(|hold| hold.id == *id);
                            freed.push(place.map_or(0, |place| model.stored.remove(place).units));
                        }
                        prop_assert_eq!(holds.release_all(names.iter().map(|id| &id[..])), freed);
                    }
                }
                Step::Renew(ids, ttl) => {
                    if ids.iter().any(|id| holds.get(&name(*id), now).is_some()) {
                        holds.sweep(now);
                        model.stored.retain(|hold| now < hold.end);
                        let names: Vec<_> = ids.into_iter().map(name).collect();
                        let mut changed = vec![];
                        for id in &names {
                            let found = model.stored.iter_mut().find(|hold| hold.id == *id);
                            changed.push(found.is_some_and(|hold| std::mem::replace(&mut hold.end, now + ttl) != now + ttl));
                        }
                        prop_assert_eq!(holds.renew_all(names.iter().map(|id| &id[..]), now + ttl), changed);
                    }
                }
                Step::Put { id, units, end, token } => {
                    let id = name(id);
                    holds.put(Hold::new(&id, units, end, token, None).unwrap());
                    model.stored.retain(|hold| hold.id != id);
                    model.stored.push(Plain { id, units, end, token });
                    model.last = model.last.max(token);
                }
            }
            let mut expected = model.stored.clone();
            expected.sort_by(|a, b| (a.end, a.token, &a.id).cmp(&(b.end, b.token, &b.id)));
            prop_assert_eq!(stored(&holds), expected);
            prop_assert_eq!(holds.last_token(), model.last);
            let live = Live { count: model.live(now).count() as u64, units: model.units(now) };
            prop_assert_eq!(holds.live(now), live);
            let last_end = model.stored.iter().map(|hold| hold.end).max().unwrap_or(0);
            let end = if model.last == 0 { 0 } else { last_end.max(model.last / 1000 + 1) };
            prop_assert_eq!((holds.last_end(), holds.end()), (last_end, end));
            let mut oldest: Vec<_> = model.live(now).map(|hold| (hold.token, hold.end)).collect();
            oldest.sort_unstable();
            for most in [1, 2, 100] {
                let found: Vec<_> = holds.oldest(now, most).iter().map(|hold| (hold.token(), hold.end())).collect();
                prop_assert_eq!(&found[..], &oldest[..most.min(oldest.len())]);
            }
            if model.last > 0 {
                let again = decode(VERSION, &encode(&holds)).unwrap();
                prop_assert_eq!(encode(&again), encode(&holds));
                prop_assert_eq!((again.last_token(), stored(&again)), (holds.last_token(), stored(&holds)));
            }
        }
    }

    /// Whatever bytes there are, an error or a value that is written as it was read.
    #[test]
    fn damaged_bytes_are_refused_or_sound(
        ends in vec(1..5_000u64, 1..9),
        reserved in vec(reservation(), 0..4),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut holds = Holds::default();
        for (place, end) in ends.iter().enumerate() {
            let reserved = (place == 0).then(|| reserved.clone().into_boxed_slice());
            holds.put(Hold::new(&[place as u8 + 1; 3], 2, *end, 1 + place as u64, reserved).unwrap());
        }
        let mut bytes = encode(&holds);
        prop_assert_eq!(encode(&decode(VERSION, &bytes).unwrap()), bytes.clone());
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(holds) = decode(VERSION, &bytes) {
            let written = encode(&holds);
            prop_assert_eq!(encode(&decode(VERSION, &written).unwrap()), written);
            prop_assert_eq!(holds.live(0).units, holds.iter().map(Hold::units).sum::<u64>());
        }
    }
}

fn reservation() -> impl Strategy<Value = Reservation> {
    let of = prop_oneof![
        (0..=MAX_EXACT, 1..100u64, 1..100u64, any::<bool>()).prop_map(
            |(instant, resolution, subintervals, warms_up)| {
                let geometry = Geometry::new(resolution * subintervals, resolution).unwrap();
                Reserved::Rate { instant, geometry, warms_up }
            }
        ),
        (0..=MAX_EXACT).prop_map(|until| Reserved::Budget { until }),
        (vec(any::<u8>(), 1..=MAX_ID), 0..=MAX_EXACT)
            .prop_map(|(id, token)| Reserved::Hold { id: id.into_boxed_slice(), token }),
    ];
    (any::<[u8; 16]>(), 1..=MAX_EXACT, of).prop_map(|(key, units, of)| Reservation { key: KeyDigest(key), units, of })
}

/// Many holds, in an order that would make a plain tree a list: all is where it should be, and memory goes as they go.
#[test]
fn many_holds_take_memory_only_while_they_are_there() {
    const MANY: u64 = 20_000;
    let id = |number: u64| number.to_be_bytes();
    let mut holds = Holds::default();
    let empty = holds.bytes();
    for number in 0..MANY {
        let request = Request { limit: MANY, ttl: 1 + number, id: &id(number), cost: 1 };
        let Ok(Verdict::Granted(grant)) = Holds::decide(Some(&holds), 1_000, &request, MANY) else { panic!() };
        grant.apply(&mut holds, None);
    }
    let full = holds.bytes();
    assert!(full as u64 / MANY <= 160, "{full} bytes");
    assert_eq!(holds.live(1_000 + MANY / 2), Live { count: MANY / 2, units: MANY / 2 });
    assert_eq!(holds.sweep(1_000 + MANY / 2), MANY / 2);
    for number in MANY / 2..MANY - 1 {
        assert_eq!(holds.release(&id(number)).map(|hold| hold.units()), Some(1));
        assert_eq!(holds.release(&id(number)), None);
    }
    assert_eq!(holds.len(), 1);
    assert!(holds.bytes() <= empty + 400, "{} bytes", holds.bytes());
    holds.release(&id(MANY - 1));
    assert_eq!((holds.bytes(), holds.allocations(), holds.is_empty()), (empty, 1, true));
}

#[test]
fn tokens_end_where_numbers_are_exact_no_more() {
    let mut holds = Holds::default();
    let request = Request { limit: 9, ttl: 1_000, id: b"a", cost: 1 };
    let Ok(Verdict::Granted(grant)) = Holds::decide(None, MAX_INSTANT, &request, 9) else { panic!() };
    assert_eq!(grant.apply(&mut holds, None).token, MAX_INSTANT * 1000);
    assert_eq!(Holds::decide(None, MAX_INSTANT + 1, &request, 9).err(), Some(Refusal::NoToken));
    holds.put(Hold::new(b"z", 1, 10, MAX_EXACT, None).unwrap());
    let other = Request { id: b"b", ..request };
    assert_eq!(Holds::decide(Some(&holds), 5, &other, 9).err(), Some(Refusal::NoToken));
    let check = |id, units, now| Holds::check_put(Some(&holds), now, &Hold::new(id, units, 10, 1, None).unwrap());
    assert!(check(b"y", MAX_EXACT, 5).is_err() && check(b"y", MAX_EXACT - 1, 5).is_err());
    assert!(check(b"z", MAX_EXACT - 1, 5).is_ok() && check(b"y", MAX_EXACT - 1, 10).is_ok());
}

#[test]
fn relocated_in_parts() {
    struct Elsewhere(usize);
    impl Relocate for Elsewhere {
        fn should_stop(&self) -> bool {
            true
        }

        fn list<T>(&mut self, list: Vec<T>) -> Vec<T> {
            self.0 += 1;
            let mut moved = Vec::with_capacity(list.capacity());
            moved.extend(list);
            moved
        }
    }
    let mut holds = Holds::default();
    let id: Box<[u8]> = b"other"[..].into();
    let reserved = Reservation { key: KeyDigest::of(b"k"), units: 1, of: Reserved::Hold { id, token: 7 } };
    for number in 0..200u64 {
        let reserved = (number % 50 == 0).then(|| vec![reserved.clone()].into_boxed_slice());
        holds.put(Hold::new(&number.to_be_bytes(), 1, 1 + number, 1, reserved).unwrap());
    }
    let (before, mut elsewhere, mut parts, mut from) = (encode(&holds), Elsewhere(0), 0, 0);
    while let Some(next) = holds.relocate(from, &mut elsewhere) {
        (from, parts) = (next, parts + 1);
    }
    assert_eq!((parts, elsewhere.0), (3, holds.allocations() - 1));
    assert_eq!(encode(&holds), before);
}

#[test]
fn digests_of_names() {
    // The first bytes of `printf abc | sha256sum`.
    assert_eq!(KeyDigest::of(b"abc").0[..4], [0xba, 0x78, 0x16, 0xbf]);
    assert_ne!(KeyDigest::of(b"a"), KeyDigest::of(b"b"));
}
