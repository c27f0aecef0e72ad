//! The slots of a command's keys in a cluster.

use redis_module::raw;

use super::call::Call;
use super::call_server::CallReply;
use super::text::Text;
use crate::error::Error;

impl Call<'_> {
    /// An error unless this node has all these keys in one slot that is whole. The server itself looks for the slot of the
    /// first only, see [`super::command`]; it answers for all when it is asked for them.
    ///
    /// It is not asked for keys of several slots: Valkey 9.1 would refuse whatever it is asked after that.
    pub fn check_slots(&self, keys: &[Text]) -> Result<(), Error> {
        if keys.len() == 1 || !self.has_flags(raw::REDISMODULE_CTX_FLAGS_CLUSTER) {
            return Ok(());
        }
        let mut slots = keys.iter().map(|key| slot(key.bytes()));
        let first = slots.next();
        if slots.any(|slot| Some(slot) != first) {
            return Err(Error::CrossSlot);
        }
        let all: Vec<&Text> = keys.iter().collect();
        match self.call(c"EXISTS", &all) {
            CallReply::Integer(_) => Ok(()),
            CallReply::SlotElsewhere => Err(Error::TryAgain),
            CallReply::Error(error) if !error.starts_with("ERR ") => Err(Error::Server(error)),
            _ => Err(Error::SlotsUnknown),
        }
    }
}

/// Whether two keys are in one slot.
pub(super) fn are_of_one_slot(one: &[u8], other: &[u8]) -> bool {
    tag(one) == tag(other) || slot(one) == slot(other)
}

/// The slot of a key. From the cluster specification of Redis, as what it is of.
fn slot(key: &[u8]) -> u16 {
    crc16(tag(key)) % 16_384
}

/// What stands between a key's first brace and the next closing one, if anything does, else all of it.
fn tag(key: &[u8]) -> &[u8] {
    let tag = key.iter().position(|byte| *byte == b'{').map(|open| &key[open + 1..]);
    let tag = tag.and_then(|tag| tag.iter().position(|byte| *byte == b'}').map(|end| &tag[..end]));
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ REMAINDERS[usize::from((crc >> 8) as u8 ^ byte)])
}

/// Of each byte.
static REMAINDERS: [u16; 256] = {
    let mut remainders = [0; 256];
    let mut byte = 0;
    while byte < remainders.len() {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        remainders[byte] = crc;
        byte += 1;
    }
    remainders
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots that servers name with CLUSTER KEYSLOT.
    #[test]
    fn slots_of_keys() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, expected) in [("123456789", 12_739), ("foo", 12_182), ("bar", 5_061), ("user", 5_474), ("", 0)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        for (key, same) in
            [("{user}:a", "user"), ("x{user}y", "user"), ("{user}{bar}", "user"), ("{}bar{foo}", "{}bar{foo}")]
        {
            assert_eq!(slot(key.as_bytes()), slot(same.as_bytes()), "{key}");
        }
        assert_ne!(slot(b"{}foo"), slot(b"foo"));
        assert_eq!(slot(b"{{bar}}zap"), crc16(b"{bar") % 16_384);
        assert_eq!(slot(b"no{tag"), crc16(b"no{tag") % 16_384);
    }
}
