//! Keys of one command in a cluster.

use redis_module::raw;

use super::ask::Answer;
use super::call::Call;
use super::text::{OwnText, Text};
use crate::error::Error;

impl Call<'_> {
    /// An error unless this node has all these keys in one slot that is whole. The server itself looks for the slot of the
    /// first only, see [`super::command`]; it answers for all when it is asked for them.
    pub fn check_slots(&self, keys: &[Text]) -> Result<(), Error> {
        if keys.len() == 1 || !self.has_flags(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
            return Ok(());
        }
        let all: Vec<&Text> = keys.iter().collect();
        match self.ask(c"EXISTS", &all) {
            Answer::Elsewhere if self.slots(keys).windows(2).any(|pair| pair[0] != pair[1]) => Err(Error::CrossSlot),
            Answer::Elsewhere => Err(Error::TryAgain),
            _ => Ok(()),
        }
    }

    fn slots(&self, keys: &[Text]) -> Vec<Option<i64>> {
        let keyslot = OwnText::new(b"KEYSLOT");
        keys.iter().map(|key| self.ask(c"CLUSTER", &[&keyslot, key]).integer()).collect()
    }
}
