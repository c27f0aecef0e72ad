//! What clients send behind a command's name, word by word: a value or an error, and the same again for the same words,
//! whether or not they were read before.

#![no_main]

use std::hint::black_box;

use libfuzzer_sys::fuzz_target;

#[path = "../../src/server/module/arguments.rs"]
#[allow(dead_code)]
mod arguments;
#[path = "../../src/server/module/error.rs"]
#[allow(dead_code)]
mod error;
#[path = "../../src/server/module/quotas.rs"]
mod quotas;

mod configuration {
    pub const MOST_SHOWN: u64 = 10_000;
}

use self::arguments::{distinct, Keyword, Words};

const KEYWORDS: [Keyword; 13] = {
    use Keyword::*;
    [Cost, Partial, Strict, Nx, Gt, Age, Since, Block, At, Force, Wait, WarmUp, Cold]
};

fuzz_target!(|bytes: &[u8]| {
    let words: Vec<&[u8]> = bytes.split(|byte| *byte == b' ').collect();
    let all = || words.iter().copied();
    let quota = all().quota(4_096);
    assert_eq!(all().quota(4_096), quota);
    if let Ok(quota) = quota {
        assert!((1..=4_096).contains(&quota.geometry.subintervals()));
        let [limit, window, resolution] = [
            quota.limit.to_string(),
            format!("{}ms", quota.geometry.window()),
            format!("{}ms", quota.geometry.resolution()),
        ];
        let spelled = [limit.as_bytes(), window.as_bytes(), resolution.as_bytes()];
        assert_eq!(spelled.into_iter().quota(4_096), Ok(quota));
    }
    for skipped in [0, 1, 3] {
        if let Ok(options) = all().skip(skipped).options(&KEYWORDS) {
            assert!(options.cost > 0 && !(options.nx && options.gt));
            assert!(options.at.is_none() || options.wait.is_none());
        }
    }
    if let Ok(numkeys) = all().numkeys() {
        assert!(numkeys > 0);
    }
    black_box((all().warm_up().is_ok(), all().units("cost").is_ok(), all().limit().is_ok(), all().id().is_ok()));
    black_box((all().duration("ttl").is_ok(), all().duration_or_zero("age").is_ok(), distinct(&words).is_ok()));
    all().quota(4_096).map_err(|error| error.to_string()).err();
});
