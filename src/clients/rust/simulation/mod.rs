//! The client on a simulated server and network, on a simulated clock.

mod counts;
mod exchanges;
pub(crate) mod fake;
mod hold_tests;
mod holds;
mod leases;
mod runs;
mod tests;
mod warming;

/// What the models' bounds and numbers of states are published in.
pub(crate) const PROMISES: &str = include_str!("../../../../docs/understand/promises.md");

/// Compares the states of a model by what their `seen` returns.
macro_rules! compared_by_seen {
    ($state:ty) => {
        impl PartialEq for $state {
            fn eq(&self, other: &Self) -> bool {
                self.seen() == other.seen()
            }
        }

        impl std::hash::Hash for $state {
            fn hash<H: std::hash::Hasher>(&self, to: &mut H) {
                self.seen().hash(to);
            }
        }
    };
}
pub(crate) use compared_by_seen;
