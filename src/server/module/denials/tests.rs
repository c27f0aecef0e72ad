use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::sketch::{Sketch, NAME};
use super::*;

/// A key for a number.
fn named<T>(number: u64, with: impl FnOnce(Key) -> T) -> T {
    with(Key::new((number % 3) as i32, format!("key:{}", number / 3).as_bytes()))
}

/// The keys of denials, one after the other: made to push each other out in different ways.
fn streams() -> impl Strategy<Value = Vec<u64>> {
    let few = vec(0..6u64, 0..600);
    let skewed = vec((0..40u64).prop_map(|n| n * n / 16), 0..600);
    let all_others = (0..800u64).prop_map(|len| (0..len).collect());
    let in_turn = (1..60u64, 0..800u64).prop_map(|(keys, len)| (0..len).map(|n| n % keys).collect());
    // One key's denials come when whatever precedes them has pushed it out.
    let hidden = (2..40u64, 1..60u64)
        .prop_map(|(gap, times)| (0..gap * times).map(|n| if n % gap == 0 { 0 } else { 1 + n }).collect());
    let first_then_churn =
        (1..50usize, 0..300u64).prop_map(|(times, len)| [vec![7; times], (100..100 + len).collect()].concat());
    let runs = vec((0..30u64, 1..40usize), 0..40)
        .prop_map(|runs| runs.into_iter().flat_map(|(key, times)| std::iter::repeat_n(key, times)).collect());
    prop_oneof![few, skewed, all_others, in_turn, hidden, first_then_churn, runs]
}

/// Count a stream; what holds of every sketch of it is checked.
fn checked(stream: &[u64], capacity: usize) -> BTreeMap<u64, u64> {
    let mut sketch = Sketch::new(capacity);
    let mut exact = BTreeMap::<u64, u64>::new();
    for &number in stream {
        named(number, |key| sketch.count(key));
        *exact.entry(number).or_default() += 1;
    }
    let (total, entries) = (stream.len() as u64, capacity as u64);
    for (&number, &times) in &exact {
        let count = named(number, |key| sketch.count_of(key));
        if times * entries > total {
            assert!(count > 0, "{times} of {total} denials with {entries} entries, and not in");
        }
        if count > 0 {
            assert!(count >= times && (count - times) * entries <= total, "{count} for {times} of {total}");
        }
    }
    let counts: Vec<u64> = sketch.counts().map(|(_, count)| count).collect();
    assert!(counts.len() <= capacity && counts.iter().sum::<u64>() == if capacity > 0 { total } else { 0 });
    assert_eq!(counts.len(), exact.len().min(capacity));
    assert!(sketch.counts().all(|(key, count)| count > 0 && sketch.count_of(key) == count), "each once, and found");
    exact
}

proptest! {
    #[test]
    fn who_has_more_than_its_share_is_in_and_overstated_by_less(stream in streams(), capacity in 0..40usize) {
        checked(&stream, capacity);
    }

    #[test]
    fn with_room_for_all_the_counts_are_exact(stream in streams()) {
        let mut sketch = Sketch::new(stream.len());
        for &number in &stream {
            named(number, |key| sketch.count(key));
        }
        for (number, times) in checked(&stream, stream.len()) {
            prop_assert_eq!(named(number, |key| sketch.count_of(key)), times);
        }
    }

    /// Two minutes are kept exactly, whatever the clock does, while there is room.
    #[test]
    fn minutes(steps in vec((-200_000..200_000i64, 0..5u64), 1..200)) {
        let mut denials = Denials::default();
        let (mut now, mut minute) = (1_000_000_000i64, 0);
        let mut expected = [BTreeMap::<u64, u64>::new(), BTreeMap::new()];
        for (step, number) in steps {
            now += if step % 3 == 0 { step } else { step.abs() / 20 };
            let next = now / 60_000;
            match next - minute {
                -1 | 0 => {}
                1 => {
                    expected = [BTreeMap::new(), std::mem::take(&mut expected[0])];
                    minute = next;
                }
                _ => {
                    expected = Default::default();
                    minute = next;
                }
            }
            denials.turn(now as u64, 10);
            named(number, |key| denials.count(key));
            *expected[0].entry(number).or_default() += 1;
            let shown = denials.most_first().collect::<Vec<_>>();
            prop_assert!(shown.is_sorted_by_key(|denied| (Reverse(denied.this + denied.last), denied.key)));
            prop_assert_eq!(shown.len(), expected[0].keys().chain(expected[1].keys().filter(|n| !expected[0].contains_key(n))).count());
            for number in 0..5 {
                let of = |minute: usize| expected[minute].get(&number).copied().unwrap_or(0);
                let found = named(number, |key| shown.iter().find(|denied| denied.key == key).map(|denied| (denied.this, denied.last)));
                prop_assert_eq!(found.unwrap_or((0, 0)), (of(0), of(1)));
            }
        }
    }
}

#[test]
fn a_change_of_the_setting_takes_effect_with_the_next_minute() {
    let mut denials = Denials::default();
    let mut deny = |now, entries| {
        denials.turn(now, entries);
        for number in 0..9 {
            named(number, |key| denials.count(key));
        }
        [denials.this.counts().count(), denials.last.counts().count()]
    };
    assert_eq!(deny(60_000, 3), [3, 0]);
    assert_eq!(deny(119_999, 5), [3, 0]);
    assert_eq!(deny(120_000, 5), [5, 3]);
    assert_eq!(deny(130_000, 0), [5, 3]);
    assert_eq!(deny(180_000, 0), [0, 5]);
    assert_eq!(deny(240_000, 1), [1, 0]);
    assert_eq!(deny(360_000, 1), [1, 0]);
}

#[test]
fn names_are_cut_and_databases_kept_apart() {
    let mut sketch = Sketch::new(10);
    let long = [b'x'; NAME + 2];
    for (database, name) in [(0, &long[..NAME]), (0, &long[..NAME + 1]), (0, &long), (0, &long[..NAME - 1]), (1, &long)]
    {
        sketch.count(Key::new(database, name));
    }
    sketch.count(Key::new(0, b""));
    let counts = sketch.counts().map(|(key, count)| (key.database, key.name.len(), count)).collect::<Vec<_>>();
    assert_eq!(counts, [(0, NAME, 3), (0, NAME - 1, 1), (1, NAME, 1), (0, 0, 1)]);
}
