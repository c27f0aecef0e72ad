//! A command as a call of the script, and the script's reply as the module's.

use std::sync::LazyLock;
use std::time::SystemTime;

use super::{is_known, Dialect, MAX_SUBINTERVALS, SCRIPT};
use crate::protocol::command::{Command, Writer, PREFIX};
use crate::transport::{Reply, Words};

/// By which servers know the script.
static DIGEST: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SCRIPT));

/// A command as a server knows it: what the script has as a call of it, and what it has not as a name alone, which the
/// server says it does not know.
pub(super) struct InDialect<'a> {
    pub command: &'a Command,
    pub dialect: Dialect,
}

impl Words for InDialect<'_> {
    fn each(&self, word: &mut dyn FnMut(&[u8])) {
        let Self { command, dialect } = *self;
        if !dialect.has(Dialect::SCRIPT) || matches!(command, Command::Server { .. }) {
            return command.each(word);
        }
        let mut to = Writer(word);
        if !command.is_scripted() {
            to.text(command.name());
            return;
        }
        let is_read = command.reads() && !dialect.has(Dialect::NO_READ_ONLY);
        match (dialect.has(Dialect::TEXT), is_read) {
            (false, false) => to.text("EVALSHA").text(DIGEST.get_hash()),
            (false, true) => to.text("EVALSHA_RO").text(DIGEST.get_hash()),
            (true, false) => to.text("EVAL").text(SCRIPT),
            (true, true) => to.text("EVAL_RO").text(SCRIPT),
        };
        to.number(command.counted_keys().unwrap_or(1) as u64);
        command.keys().for_each(|key| (to.0)(key));
        command.write_arguments(dialect.has(Dialect::OWN_CLOCK).then(unix_ms), &mut to);
    }
}

const COUNT: u8 = 1;
const PARTIAL: u8 = 2;
const STRICT: u8 = 4;
const ALL: u8 = 8;

impl Command {
    /// Whether the script has it, too.
    pub fn is_scripted(&self) -> bool {
        !matches!(self, Self::Acquire { .. } | Self::Top { .. } | Self::Server { .. })
    }

    /// Whether it was sent as a name alone, for the script has not got it, to a server that has the module.
    pub(super) fn is_known_by_name(&self, reply: &Reply) -> bool {
        let is_lacking = !matches!(self, Self::Server { .. }) && !self.is_scripted();
        is_lacking && is_known(reply)
    }

    /// Whether it must not be sent to a server that perhaps does not know it: its error would quote the words, cut
    /// anywhere.
    pub(super) fn is_to_be_known(&self) -> bool {
        let mut is_ascii = true;
        self.each(&mut |word| is_ascii &= word.is_ascii());
        !is_ascii && !matches!(self, Self::Server { .. })
    }

    /// A bit for each command with ids, which may be any bytes; none for others.
    pub(super) fn id_bit(&self) -> u8 {
        match self {
            Self::Hold { .. } => 1,
            Self::Renew { .. } => 2,
            Self::Release { .. } => 4,
            Self::Admit { .. } => 8,
            Self::Settle { .. } => 16,
            _ => 0,
        }
    }

    /// The names alone of the commands with these bits.
    pub(super) fn named(bits: u8) -> impl Iterator<Item = (u8, Self)> {
        const NAMES: [&[&str]; 5] =
            [&["SWLIMIT.HOLD"], &["SWLIMIT.RENEW"], &["SWLIMIT.RELEASE"], &["SWLIMIT.ADMIT"], &["SWLIMIT.SETTLE"]];
        let each = NAMES.into_iter().enumerate().map(|(at, name)| (1 << at, Self::server(name)));
        each.filter(move |(bit, _)| bits & bit > 0)
    }

    /// What the script gets behind the keys; where its caller's clock decides, with the time.
    pub fn write_arguments(&self, at: Option<u64>, to: &mut Writer<'_>) {
        let at = at.filter(|_| !matches!(self, Self::Info { .. }));
        match (self.packed(), at) {
            (Some(mut packed), Some(at)) => {
                packed.extend(at.to_le_bytes());
                to.word(&packed);
            }
            (Some(packed), None) => {
                to.word(&packed);
            }
            (None, at) => {
                to.text(self.name().trim_start_matches(PREFIX));
                match self {
                    // The script knows no WAIT: its callers wait.
                    Self::Hold { hold, .. } => {
                        to.hold(hold);
                    }
                    _ => self.write_options(to),
                }
                if let Some(at) = at {
                    to.text("AT").number(at);
                }
            }
        }
    }

    /// The numbers of an ALLOW, a PEEK, or a MALLOW of several keys in one argument, which costs the script less than
    /// words. `None` where only words say it.
    fn packed(&self) -> Option<Vec<u8>> {
        match self {
            _ if self.warms_up() => None,
            Self::Allow { demand, .. } if demand.block.is_none() => packed(COUNT, [&demand.exact]),
            Self::Peek { demand, .. } => packed(0, [&demand.exact]),
            Self::Mallow { members, strict } if members.len() > 1 => {
                let flags = COUNT | ALL | if *strict { STRICT } else { 0 };
                packed(flags, members.iter().map(|(_, demand)| &demand.exact))
            }
            _ => None,
        }
    }

    /// The reply in the module's numbers, where the script has packed these into bytes: an ALLOW's or a PEEK's.
    pub(super) fn unpacked(&self, reply: Reply) -> Reply {
        let (Reply::Bytes(bytes), Self::Allow { demand, .. } | Self::Peek { demand, .. }) = (&reply, self) else {
            return reply;
        };
        let limit = i64::try_from(demand.exact.quota.limit).ok();
        let (Some(limit), Some([first, second, reset_after])) = (limit, numbers(bytes)) else { return reply };
        let (granted, remaining, retry_after) = if first > 0 { (first, second, 0) } else { (0, -first, second) };
        Reply::Array([granted, limit, remaining, retry_after, reset_after].map(Reply::Integer).to_vec())
    }
}

/// `None` where a window has more subintervals than the script takes.
fn packed<'a>(flags: u8, requests: impl IntoIterator<Item = &'a swlimit_window::Request>) -> Option<Vec<u8>> {
    let mut packed = vec![flags];
    for &swlimit_window::Request { quota, cost, partial, strict, .. } in requests {
        let (resolution, window) = (quota.geometry.resolution(), quota.geometry.window());
        if window / resolution > MAX_SUBINTERVALS {
            return None;
        }
        packed[0] |= if partial { PARTIAL } else { 0 } | if strict { STRICT } else { 0 };
        packed.extend([quota.limit, resolution, window / resolution, cost].into_iter().flat_map(u64::to_le_bytes));
    }
    Some(packed)
}

/// Integers below 2^53 that are little-endian doubles.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<[i64; N]> {
    let mut numbers = [0; N];
    if bytes.len() != 8 * N {
        return None;
    }
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(8)) {
        *number = f64::from_le_bytes(bytes.try_into().ok()?) as i64;
    }
    Some(numbers)
}

/// This machine's clock.
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
