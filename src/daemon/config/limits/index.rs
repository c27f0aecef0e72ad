//! Finds those of many patterns that may match a value, without trying each.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use ahash::RandomState;
use aho_corasick::AhoCorasick;

/// Below this number of texts, each pattern is tried.
const FEW: usize = 8;

/// Numbers by patterns: those whose pattern may match a value. A value that matches contains all texts of the pattern,
/// so it is enough to look for one of them.
#[derive(Debug, Default)]
pub struct Index {
    /// Finds the texts in a value.
    texts: Option<AhoCorasick>,
    /// The numbers of each text.
    by_text: Vec<Vec<usize>>,
    /// The numbers that any value finds, in order.
    others: Vec<usize>,
}

impl Index {
    /// An index of patterns without wildcards among the texts of each.
    pub fn of_patterns<'a>(patterns: impl Iterator<Item = Vec<&'a str>> + Clone) -> Self {
        let texts = Texts::of(patterns.clone());
        let (mut by_text, mut others) = (Vec::new(), Vec::new());
        for (number, pattern) in patterns.enumerate() {
            match texts.rarest(&pattern) {
                Some(text) => by_text.push((text, number)),
                None => others.push(number),
            }
        }
        Self::new(by_text, others)
    }

    /// An index of numbers that a text finds, and of those that any value does.
    pub fn new(numbers: Vec<(&str, usize)>, mut others: Vec<usize>) -> Self {
        let mut by_text: HashMap<&str, Vec<usize>, RandomState> = HashMap::default();
        for (text, number) in &numbers {
            by_text.entry(text).or_default().push(*number);
        }
        let (texts, by_text): (Vec<_>, Vec<_>) = by_text.into_iter().unzip();
        // It fails for more texts than any file has.
        let texts = (texts.len() > FEW).then(|| AhoCorasick::new(texts).ok()).flatten();
        if texts.is_none() {
            others.extend(numbers.iter().map(|(_, number)| number));
        }
        others.sort_unstable();
        others.dedup();
        Self { texts, by_text, others }
    }

    /// The numbers of the patterns that may match a value, in order.
    pub fn find(&self, value: &[u8]) -> Cow<'_, [usize]> {
        let Some(texts) = &self.texts else { return Cow::Borrowed(&self.others) };
        let mut seen: HashSet<_, RandomState> = HashSet::default();
        let mut found = self.others.clone();
        for text in texts.find_overlapping_iter(value).map(|found| found.pattern().as_usize()) {
            if seen.insert(text) {
                found.extend(&self.by_text[text]);
            }
        }
        found.sort_unstable();
        found.dedup();
        Cow::Owned(found)
    }
}

/// How many patterns have each text.
pub struct Texts<'a>(HashMap<&'a str, usize, RandomState>);

impl<'a> Texts<'a> {
    /// The texts of all patterns.
    pub fn of(patterns: impl Iterator<Item = Vec<&'a str>>) -> Self {
        let mut counts: HashMap<_, usize, RandomState> = HashMap::default();
        patterns.flatten().for_each(|text| *counts.entry(text).or_default() += 1);
        Self(counts)
    }

    /// The text of a pattern that fewest patterns have, and the longest of several; `None` if it has none.
    pub fn rarest(&self, pattern: &[&'a str]) -> Option<&'a str> {
        pattern.iter().copied().min_by_key(|text| (self.0[text], usize::MAX - text.len()))
    }

    /// The rarest text of each pattern, and how many patterns these find; `None` if any value may match one.
    pub fn all_rarest(&self, patterns: &[Vec<&'a str>]) -> Option<(usize, Vec<&'a str>)> {
        let texts: Vec<_> = patterns.iter().map(|pattern| self.rarest(pattern)).collect::<Option<_>>()?;
        let found = texts.iter().map(|text| self.0[text]).sum();
        (!texts.is_empty()).then_some((found, texts))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wildcard::Wildcard;
    use super::*;

    fn index(patterns: &[String]) -> (Vec<Wildcard>, Index) {
        let wild: Vec<_> = patterns.iter().map(|pattern| Wildcard::new(pattern).unwrap()).collect();
        let index = Index::of_patterns(wild.iter().map(Wildcard::texts));
        (wild, index)
    }

    #[test]
    fn few_of_many_patterns_are_tried() {
        for pattern in ["/tenants/N/*", "*.N.example", "/api/*/N", "/api/*/N/*/x", "*-N-*"] {
            let patterns: Vec<_> = (10_000..20_000).map(|n| pattern.replace('N', &n.to_string())).collect();
            let (wild, index) = index(&patterns);
            let value = pattern.replace('N', "12345").replace('*', "y");
            let found = index.find(value.as_bytes());
            assert!(found.len() <= 3, "{pattern}: {}", found.len());
            let matching: Vec<_> = found.iter().filter(|at| wild[**at].matches(value.as_bytes())).collect();
            assert_eq!(matching, [&2345], "{pattern}");
            assert!(index.find(b"/else").is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_match_is_missed(
            patterns in prop::collection::vec("[ab]{0,3}[*][ab]{0,2}[*]?[ab]{0,2}", 0..40),
            values in prop::collection::vec("[ab]{0,8}", 1..9),
        ) {
            let (wild, index) = index(&patterns);
            for value in values.iter().map(String::as_bytes) {
                let matching = |at: &usize| wild[*at].matches(value);
                let expected: Vec<_> = (0..wild.len()).filter(matching).collect();
                let found: Vec<_> = index.find(value).iter().copied().filter(matching).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
