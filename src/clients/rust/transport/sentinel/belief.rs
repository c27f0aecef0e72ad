//! Which primary is followed, by what sentinels say. No network and no clock.
//!
//! Only news with a larger `config-epoch` is followed: a sentinel that is behind leads nobody back. Sentinels that begin
//! again, such as containers without a volume, begin at epoch 0 and would never be followed. So where the known primary
//! cannot be reached, or is no primary any more, the majority of all sentinels is, whatever their epochs are.

use std::collections::HashSet;

/// A primary, as a sentinel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Primary {
    pub epoch: u64,
    pub host: String,
    pub port: u16,
}

/// What one sentinel says of the primary and of the other sentinels.
#[derive(Clone, Debug)]
pub(crate) struct Vote {
    pub primary: Primary,
    /// How many other sentinels it knows.
    pub others: usize,
    /// The ids of those that it calls down.
    pub down: Vec<String>,
}

impl Primary {
    pub fn is_at(&self, other: &Self) -> bool {
        (self.host.as_str(), self.port) == (&*other.host, other.port)
    }
}

/// Whether what a sentinel says is news.
pub(crate) fn is_news(known: Option<&Primary>, told: &Primary) -> bool {
    known.is_none_or(|known| told.epoch > known.epoch)
}

/// The other primary that a majority of all sentinels names, where the known one cannot be reached or is none. All are as
/// many as were configured, or as the sentinels know of, less those that they call down.
pub(crate) fn elected(known: &Primary, votes: &[Vote], configured: usize) -> Option<Primary> {
    let known_to_them = votes.iter().map(|vote| vote.others + 1).max().unwrap_or_default();
    let down: HashSet<&String> = votes.iter().flat_map(|vote| &vote.down).collect();
    let all = configured.max(known_to_them).saturating_sub(down.len());
    let supporters = |primary: &Primary| votes.iter().filter(|vote| vote.primary.is_at(primary)).count();
    let others = votes.iter().map(|vote| &vote.primary).filter(|primary| !primary.is_at(known));
    let newest = others.filter(|primary| 2 * supporters(primary) > all).max_by_key(|primary| primary.epoch);
    newest.cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, port: u16) -> Primary {
        Primary { epoch, host: "a".into(), port }
    }

    fn vote(epoch: u64, port: u16, others: usize, down: &[&str]) -> Vote {
        Vote { primary: at(epoch, port), others, down: down.iter().map(|id| (*id).to_owned()).collect() }
    }

    #[test]
    fn only_a_larger_epoch_is_news() {
        let mut known = None;
        for (epoch, port, expected) in [(3, 1, 1), (2, 2, 1), (3, 2, 1), (4, 2, 2), (0, 1, 2)] {
            if is_news(known.as_ref(), &at(epoch, port)) {
                known = Some(at(epoch, port));
            }
            assert_eq!(known.as_ref().map(|known| known.port), Some(expected), "epoch {epoch}");
        }
    }

    #[test]
    fn a_majority_of_all_sentinels_elects() {
        let known = at(5, 1);
        let port = |votes: &[Vote], configured| elected(&known, votes, configured).map(|elected| elected.port);
        assert_eq!(port(&[vote(0, 2, 0, &[])], 1), Some(2), "all of one");
        assert_eq!(port(&[vote(0, 2, 2, &[]), vote(0, 2, 2, &[])], 3), Some(2), "two of three");
        assert_eq!(port(&[vote(0, 2, 2, &[]), vote(5, 1, 2, &[]), vote(0, 2, 2, &[])], 3), Some(2));
        assert_eq!(port(&[vote(0, 2, 2, &[])], 3), None, "one of three");
        assert_eq!(port(&[vote(0, 2, 4, &[]), vote(0, 2, 4, &[])], 2), None, "two of five that the sentinels know");
        assert_eq!(port(&[vote(0, 2, 2, &["x"]), vote(0, 3, 2, &["x"])], 3), None, "a majority names two");
        assert_eq!(port(&[vote(0, 2, 2, &["x", "y"])], 3), Some(2), "the others are down");
        assert_eq!(port(&[vote(0, 1, 0, &[])], 1), None, "the known one");
        assert_eq!(port(&[], 1), None);
    }
}
