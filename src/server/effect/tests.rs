use std::borrow::Cow;
use std::num::NonZeroU64;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use swlimit_hold::{KeyDigest, Reservation, Reserved, MAX_INSTANT, MAX_RESERVATIONS};
use swlimit_window::{Geometry, MAX_BLOCK, MAX_EXACT, MAX_SUBINTERVALS, MAX_WINDOW};

use crate::{Effect, Expiry, Id, Word, MAX_IDS, MAX_WORD};

/// The pages and the take-over have the same words.
#[test]
fn words_of_the_table() {
    let geometry = Geometry::new(60_000, 1000).unwrap();
    let instant = 1_795_529_158_556;
    let key = KeyDigest(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef");
    let reserved = [
        Reservation { key, units: 3, of: Reserved::Rate { instant, geometry, warms_up: false } },
        Reservation { key, units: 5, of: Reserved::Budget { until: 1_798_761_600_000 } },
        Reservation { key, units: 1, of: Reserved::Hold { id: Box::from(&b"a b"[..]), token: 7 } },
    ];
    let id = |id: &'static [u8]| Cow::Borrowed(id);
    for (effect, expiry, word) in [
        (
            Effect::Count { geometry, units: 1, instant, dated: None, since: None },
            Expiry::OwnEnd,
            "c1000*60@1795529158556!",
        ),
        (
            Effect::Count { geometry, units: 3, instant, dated: Some(1_795_529_150_000), since: None },
            Expiry::Kept,
            "c1000*60@1795529158556:1795529150000+3",
        ),
        (
            Effect::Count { geometry, units: 3, instant, dated: None, since: NonZeroU64::new(1_795_529_158_000) },
            Expiry::OwnEnd,
            "c1000*60@1795529158556+3^1795529158000!",
        ),
        (Effect::Refund { units: 3, instant, since: None }, Expiry::At(0), "r3@1795529158556~0"),
        (Effect::Refund { units: 3, instant, since: Some(1) }, Expiry::At(9), "r3@1795529158556:1~9"),
        (Effect::Block { until: MAX_BLOCK }, Expiry::OwnEnd, "b9007514614740991!"),
        (Effect::Unblock { instant }, Expiry::Kept, "u@1795529158556"),
        (
            Effect::Period { until: 1_798_761_600_000, units: 5, instant },
            Expiry::OwnEnd,
            "p1798761600000@1795529158556+5!",
        ),
        (
            Effect::Hold { id: id(b"a%\xff"), end: 9, token: 8, units: 2, reserved: reserved[..].into(), instant: 0 },
            Expiry::OwnEnd,
            "ha%25%ff>9#8@0+2;c1000*60@1795529158556+3$0123456789abcdef0123456789abcdef\
             ;p1798761600000+5$0123456789abcdef0123456789abcdef;ha%20b#7$0123456789abcdef0123456789abcdef!",
        ),
        (Effect::Renew { ids: vec![id(b"job-1"), id(b",")], end: 9, instant: 3 }, Expiry::Kept, "njob-1,%2c>9@3"),
        (Effect::Release { ids: vec![id(b"job-1")], instant: 3 }, Expiry::Kept, "ejob-1@3"),
    ] {
        let expected = Word { effect, expiry };
        assert_eq!(String::from_utf8_lossy(&expected.write()), word);
        assert_eq!(Word::read(word.as_bytes()), Ok(expected));
    }
}

#[test]
fn a_reservation_may_name_its_key() {
    let Ok(Word { effect: Effect::Hold { reserved, .. }, .. }) = Word::read(b"ha>9#8@0;p7=a%20b;p7=") else { panic!() };
    assert_eq!(reserved[0].key, KeyDigest::of(b"a b"));
    assert_eq!(reserved[1].key, KeyDigest::of(b""));
}

#[test]
fn what_is_no_effect_is_refused() {
    let long = format!("e{}@1", "a".repeat(129));
    let many = format!("e{}@1", vec!["a"; MAX_IDS + 1].join(","));
    let longest = format!("ha>9#8@0;p7={}", "a".repeat(MAX_WORD));
    let reserving = format!("ha>9#8@0{}", ";p7=k".repeat(MAX_RESERVATIONS + 1));
    for word in [
        "",
        "x",
        "c",
        "C1000*60@1",
        "c1000",
        "c1000*60",
        "c1000*60@",
        "c1000*60@1 ",
        "c1000*60@1!!",
        "c1000*60@1!~1",
        "c1000*60@1~",
        "c1000*60@1~-1",
        "c1000*60@-1",
        "c1000*60@1+0",
        "c1000*60@1+3+3",
        "c1000*60@1+3:1",
        "c0*60@1",
        "c1000*0@1",
        "c1*1000001@1",
        "c315360000000*2@1",
        "c9007199254740991*9007199254740991@1",
        "c1000*60@9007199254740992",
        "c1000*60@1+9007199254740992",
        "c1000*60@00000000000000001",
        "c1000*60@1~10000000000000000",
        "c1000*60@99999999999999999999",
        "r0@1",
        "r1",
        "r1@1:2",
        "b0",
        "b9007514614740992",
        "b1@1",
        "u",
        "u1",
        "p5@5",
        "p4@5",
        "p5",
        "p315360000001@0",
        "h>9#8@0",
        "ha>0#8@0",
        "ha>9#0@0",
        "ha>9#8",
        "ha>9#8@0+0",
        "ha>9#8@0;",
        "ha>9#8@0;x",
        "ha>9#8@0;p7",
        "ha>9#8@0;p7$",
        "ha>9#8@0;p7$0123456789abcdef0123456789abcde",
        "ha>9#8@0;p7$0123456789abcdefg123456789abcdef",
        "ha>9#8@0;h#7=k",
        "ha>9#8@0;c0*1@1=k",
        "ha>9#8@0;p7+0=k",
        "ha%>9#8@0",
        "ha%2>9#8@0",
        "ha%2x>9#8@0",
        "ha b>9#8@0",
        "h\u{e9}>9#8@0",
        "n>9@3",
        "na>0@3",
        "na>9",
        "na,>9@3",
        "e@3",
        "ea",
        "ea,@3",
        "e,a@3",
        &long,
        &many,
        &longest,
        &reserving,
    ] {
        assert!(Word::read(word.as_bytes()).is_err(), "{:?}", &word[..word.len().min(80)]);
    }
}

fn instants() -> impl Strategy<Value = u64> {
    prop_oneof![0..=20u64, 1_795_529_000_000..1_795_530_000_000u64, MAX_EXACT - 9..=MAX_EXACT]
}

fn units() -> impl Strategy<Value = u64> {
    prop_oneof![1..=3u64, 1..=MAX_EXACT]
}

fn geometries() -> impl Strategy<Value = Geometry> {
    (1..=MAX_SUBINTERVALS, 1..=MAX_WINDOW).prop_map(|(subintervals, window)| {
        let resolution = (window / subintervals).max(1);
        Geometry::new(resolution * subintervals, resolution).unwrap()
    })
}

fn ids() -> impl Strategy<Value = Id<'static>> {
    vec(any::<u8>(), 1..=128).prop_map(Cow::Owned)
}

fn reservations() -> impl Strategy<Value = Reservation> {
    let of = prop_oneof![
        (instants(), geometries(), any::<bool>()).prop_map(|(instant, geometry, warms_up)| Reserved::Rate {
            instant,
            geometry,
            warms_up
        }),
        instants().prop_map(|until| Reserved::Budget { until }),
        (ids(), instants()).prop_map(|(id, token)| Reserved::Hold { id: id.into(), token }),
    ];
    (any::<[u8; 16]>(), units(), of).prop_map(|(key, units, of)| Reservation { key: KeyDigest(key), units, of })
}

fn effects() -> impl Strategy<Value = Effect<'static>> {
    prop_oneof![
        (geometries(), units(), instants(), option::of(instants()), 0..=MAX_EXACT).prop_map(
            |(geometry, units, instant, dated, since)| Effect::Count {
                geometry,
                units,
                instant,
                dated,
                since: NonZeroU64::new(since)
            }
        ),
        (units(), instants(), option::of(0..=1000u64)).prop_map(|(units, instant, age)| {
            Effect::Refund { units, instant, since: age.map(|age| instant.saturating_sub(age)) }
        }),
        (1..=MAX_BLOCK).prop_map(|until| Effect::Block { until }),
        instants().prop_map(|instant| Effect::Unblock { instant }),
        (units(), 0..=MAX_EXACT - MAX_WINDOW, 1..=MAX_WINDOW).prop_map(|(units, instant, length)| Effect::Period {
            until: instant + length,
            units,
            instant
        }),
        (ids(), 1..=MAX_INSTANT, 1..=MAX_EXACT, units(), vec(reservations(), 0..=MAX_RESERVATIONS), instants())
            .prop_map(|(id, end, token, units, reserved, instant)| {
                Effect::Hold { id, end, token, units, reserved: reserved.into(), instant }
            }),
        (vec(ids(), 1..=MAX_IDS), 1..=MAX_INSTANT, instants()).prop_map(|(ids, end, instant)| Effect::Renew {
            ids,
            end,
            instant
        }),
        (vec(ids(), 1..=MAX_IDS), instants()).prop_map(|(ids, instant)| Effect::Release { ids, instant }),
    ]
}

fn expiries() -> impl Strategy<Value = Expiry> {
    prop_oneof![Just(Expiry::Kept), Just(Expiry::OwnEnd), instants().prop_map(Expiry::At)]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(effect in effects(), expiry in expiries()) {
        let word = Word { effect, expiry };
        let bytes = word.write();
        prop_assert!(bytes.len() <= MAX_WORD && bytes.iter().all(|byte| (0x21..0x7f).contains(byte)));
        prop_assert_eq!(Word::read(&bytes), Ok(word));
    }

    /// What is read of it, if anything, is written in a form that is read again.
    #[test]
    fn a_damaged_word_is_an_error_or_an_effect(
        effect in effects(),
        expiry in expiries(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = Word { effect, expiry }.write();
        let place = place.index(bytes.len());
        bytes[place] = byte;
        if cut {
            bytes.truncate(place);
        }
        if let Ok(word) = Word::read(&bytes) {
            let again = word.write();
            prop_assert_eq!(Word::read(&again), Ok(word));
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_an_effect(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Word::read(&bytes);
    }
}
