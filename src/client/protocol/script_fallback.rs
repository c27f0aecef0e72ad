//! The module's commands on servers that have not loaded it: a script makes the same decisions.
//!
//! Each connection learns from the first reply whether its server has the module or needs the script, and from then on
//! writes commands for that. A command that the server did not know, or whose script it did not know, was not executed,
//! so it is sent again at once. An error of that kind quotes the command's words, and a quotation that is not UTF-8 ends
//! the connection: words that are not ASCII are only sent once the server is known.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::SystemTime;

use super::command::{Command, Writer, PREFIX};
use crate::mode::Module;
use crate::servers::Backend;
use crate::transport::{Connection, Events, Failure, Pending, Purpose, Reply, Transport, Words};

/// The script.
pub(crate) const SCRIPT: &str = include_str!("../../lua/swlimit.lua");
/// By which servers know the script.
static DIGEST: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SCRIPT));
/// Makes the script known to a server.
const LOAD: Command = Command::server(&["SCRIPT", "LOAD", SCRIPT]);

/// The script refuses windows of more subintervals, with an error that only its words have.
pub(super) const MAX_SUBINTERVALS: u64 = 4096;
/// How often commands are sent again: once for the script in place of the module, once for EVALSHA in place of
/// EVALSHA_RO, once for a script that was not loaded, once with this machine's clock.
pub(super) const ROUNDS: usize = 4;
/// With this the script says that it could not ask for the time.
const NO_CLOCK: &str = "ERR no clock: ";
/// So begins the error of a server that knows a command and got its name alone.
const KNOWN: &str = "ERR wrong number of arguments";

/// A transport whose connections write commands as their server knows them.
pub(crate) struct Encoding {
    transport: Box<dyn Transport>,
    module: Module,
}

/// A connection that writes commands as its server knows them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Encoded(Arc<Inner>);

struct Inner {
    connection: Box<dyn Connection>,
    module: Module,
    /// A [`Dialect`]. What a server lacks is only learned from what it refuses.
    dialect: AtomicU8,
}

/// How commands are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dialect(u8);

impl Dialect {
    /// The module's, which may be missing.
    const UNTRIED: Self = Self(0);
    const MODULE: Self = Self(1);
    const SCRIPT: Self = Self(2);
    /// Besides: the server is older than EVALSHA_RO.
    const NO_READ_ONLY: Self = Self(4);
    /// Besides: the script may not ask the server for the time, so this machine's clock decides.
    const OWN_CLOCK: Self = Self(8);
    /// Besides: the script has answered, and that was logged.
    const ANSWERED: Self = Self(16);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn of(module: Module) -> Self {
        if module == Module::Never {
            Self::SCRIPT
        } else {
            Self::UNTRIED
        }
    }
}

impl Encoding {
    pub fn new(transport: Box<dyn Transport>, module: Module) -> Self {
        Self { transport, module }
    }

    /// Connects, as [`Transport::connect`] says.
    pub fn connect(&self, node: Option<&str>, purpose: Purpose, events: Events) -> Pending<Encoded> {
        let (connecting, module) = (self.transport.connect(node, purpose, events), self.module);
        Box::pin(async move { Ok(Encoded::new(connecting.await?, module)) })
    }

    pub fn seeds(&self) -> Vec<String> {
        self.transport.seeds()
    }

    pub fn address(&self) -> String {
        self.transport.address()
    }

    pub fn offers(&self, purpose: Purpose) -> bool {
        self.transport.offers(purpose)
    }
}

impl Encoded {
    fn new(connection: Box<dyn Connection>, module: Module) -> Self {
        let dialect = AtomicU8::new(Dialect::of(module).0);
        Self(Arc::new(Inner { connection, module, dialect }))
    }

    /// Sends a command, as [`Connection::send`] says.
    pub fn send(&self, command: &Command) -> Pending<Reply> {
        let dialect = self.0.dialect();
        if dialect == Dialect::UNTRIED && command.is_to_be_known() {
            let replies = self.send_all(std::slice::from_ref(command));
            return Box::pin(tokio::task::unconstrained(async move {
                match replies.await? {
                    Reply::Array(mut replies) => replies.pop().ok_or_else(|| Failure::Connection("no reply".into())),
                    reply => Ok(reply),
                }
            }));
        }
        let sent = self.0.connection.send(&InDialect { command, dialect });
        if dialect == Dialect::MODULE {
            return sent;
        }
        let (inner, command) = (Arc::clone(&self.0), command.clone());
        Box::pin(tokio::task::unconstrained(async move {
            let reply = sent.await?;
            if !inner.is_refused(&command, &reply) {
                return Ok(inner.understood(&command, reply));
            }
            let mut replies = inner.send_again(&[command], vec![reply]).await?;
            replies.pop().ok_or_else(|| Failure::Connection("no reply".into()))
        }))
    }

    /// Sends several commands in one go, as [`Connection::send_all`] says.
    pub fn send_all(&self, commands: &[Command]) -> Pending<Reply> {
        let dialect = self.0.dialect();
        if dialect == Dialect::UNTRIED && commands.iter().any(Command::is_to_be_known) {
            let (encoded, commands) = (self.clone(), commands.to_vec());
            return Box::pin(tokio::task::unconstrained(async move {
                match encoded.0.find_out().await? {
                    Some(missing) => Ok(Reply::Array(vec![missing; commands.len()])),
                    None => encoded.send_all(&commands).await,
                }
            }));
        }
        let sent = self.0.send_in(dialect, commands);
        if dialect == Dialect::MODULE {
            return sent;
        }
        let (inner, commands) = (Arc::clone(&self.0), commands.to_vec());
        Box::pin(tokio::task::unconstrained(async move {
            match sent.await? {
                Reply::Array(replies) => inner.send_again(&commands, replies).await.map(Reply::Array),
                reply => Ok(reply),
            }
        }))
    }

    /// The server's address, where the transport has found it itself.
    pub fn address(&self) -> Option<String> {
        self.0.connection.address()
    }

    /// Which of both decides on this connection's server; `None` while that is not known.
    pub fn backend(&self) -> Option<Backend> {
        match self.0.dialect() {
            dialect if dialect.has(Dialect::SCRIPT) => Some(Backend::Script),
            Dialect::MODULE => Some(Backend::Module),
            _ => None,
        }
    }
}

impl Inner {
    fn dialect(&self) -> Dialect {
        Dialect(self.dialect.load(Ordering::Relaxed))
    }

    fn send_in(&self, dialect: Dialect, commands: &[Command]) -> Pending<Reply> {
        let commands: Vec<_> = commands.iter().map(|command| InDialect { command, dialect }).collect();
        let words: Vec<&dyn Words> = commands.iter().map(|command| command as &dyn Words).collect();
        self.connection.send_all(&words)
    }

    /// Finds out by asking; the error where the server decides by neither, or not now.
    async fn find_out(&self) -> Result<Option<Reply>, Failure> {
        let reply = self.connection.send(&Command::PEEK_BY_NAME).await?;
        match &reply {
            Reply::Error(text) if is_unknown_command(text) && self.module == Module::Auto => {
                self.learn(Dialect::SCRIPT);
            }
            Reply::Error(text) if text.starts_with(KNOWN) => self.learn_module(),
            _ => return Ok(Some(reply)),
        }
        Ok(None)
    }

    /// Whether a command was not executed for what the server lacks. Learns from the reply what that is.
    fn is_refused(&self, command: &Command, reply: &Reply) -> bool {
        if !command.is_scripted() {
            let has_module = self.module == Module::Auto && command.is_known_by_name(reply);
            if has_module {
                tracing::info!("the rate limit server has loaded swlimit: the module decides");
                self.dialect.store(Dialect::MODULE.0, Ordering::Relaxed);
            }
            return has_module;
        }
        let (dialect, Reply::Error(text)) = (self.dialect(), reply) else {
            self.learn_from_answer();
            return false;
        };
        let is_scripted = dialect.has(Dialect::SCRIPT);
        if text.starts_with("NOSCRIPT") {
            return true;
        }
        let lacks_read_only = lacks(text, "EVALSHA_RO");
        if !lacks_read_only && lacks(text, "EVALSHA") {
            // It has neither. The next command finds out again what it has: it may be loading the module.
            self.dialect.store(Dialect::of(self.module).0, Ordering::Relaxed);
            return false;
        }
        if is_scripted && text.starts_with(NO_CLOCK) && !matches!(command, Command::Info { .. }) {
            if self.learn(Dialect::OWN_CLOCK) {
                tracing::warn!(error = text, "the script may not ask for the time: this machine's clock decides");
            }
            return true;
        }
        if is_scripted && lacks_read_only {
            self.learn(Dialect::NO_READ_ONLY);
        } else if dialect == Dialect::UNTRIED && self.module == Module::Auto && is_unknown_command(text) {
            self.learn(Dialect::SCRIPT);
        }
        // Perhaps it was sent before another command's reply said what there is.
        self.dialect().has(Dialect::SCRIPT) && is_unknown_command(text)
    }

    fn learn_module(&self) {
        let (untried, module) = (Dialect::UNTRIED.0, Dialect::MODULE.0);
        let _ = self.dialect.compare_exchange(untried, module, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The server answered a command in this dialect.
    fn learn_from_answer(&self) {
        let dialect = self.dialect();
        if !dialect.has(Dialect::SCRIPT) {
            self.learn_module();
        } else if !dialect.has(Dialect::ANSWERED) && self.learn(Dialect::ANSWERED) {
            tracing::info!("the rate limit server has not loaded swlimit: its script decides");
        }
    }

    /// Whether that is news.
    fn learn(&self, more: Dialect) -> bool {
        self.dialect.fetch_or(more.0, Ordering::Relaxed) & more.0 == 0
    }

    /// The replies, once what was not executed has been sent again in its order.
    async fn send_again(&self, commands: &[Command], mut replies: Vec<Reply>) -> Result<Vec<Reply>, Failure> {
        for _ in 0..ROUNDS {
            let refused = commands.iter().zip(&replies).enumerate();
            let refused = refused.filter(|(_, (command, reply))| self.is_refused(command, reply));
            let refused: Vec<usize> = refused.map(|(place, _)| place).collect();
            if refused.is_empty() {
                break;
            }
            let unloaded = refused.iter().any(|place| replies.get(*place).is_some_and(is_unloaded));
            let mut again = Vec::with_capacity(2 * refused.len() + 1);
            if unloaded {
                again.push(LOAD);
            }
            let mut answers = Vec::with_capacity(refused.len());
            for place in &refused {
                // A node that takes over a slot needs ASKING before each command.
                let asking = place.checked_sub(1).and_then(|before| commands.get(before));
                again.extend(asking.filter(|command| **command == Command::ASKING).cloned());
                let Some(command) = commands.get(*place) else { continue };
                answers.push(again.len());
                again.push(command.clone());
            }
            let Reply::Array(mut came) = self.send_in(self.dialect(), &again).await? else { break };
            let loaded = if unloaded { came.first().cloned() } else { None };
            for (place, answer) in refused.into_iter().zip(answers) {
                let (Some(reply), Some(answer)) = (replies.get_mut(place), came.get_mut(answer)) else { continue };
                *reply = std::mem::replace(answer, Reply::Nil);
                if let (true, Some(Reply::Error(why))) = (is_unloaded(reply), &loaded) {
                    *reply = Reply::Error(why.clone());
                }
            }
        }
        Ok(commands.iter().zip(replies).map(|(command, reply)| self.understood(command, reply)).collect())
    }

    /// The reply as the module gives it. A command that the script has not is unknown where nothing else may be asked.
    fn understood(&self, command: &Command, reply: Reply) -> Reply {
        if self.module == Module::Never && command.is_known_by_name(&reply) {
            return Reply::Error(format!("ERR unknown command '{}'", command.name()));
        }
        command.unpacked(reply)
    }
}

fn is_unloaded(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("NOSCRIPT"))
}

/// Whether an error says that the server, or the service before it, has no such command.
pub(crate) fn is_unknown_command(error: &str) -> bool {
    let is = |start: &str| error.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    is("ERR unknown command") || is("ERR command is not available") || is("ERR unsupported command")
}

/// Whether an error says that there is no command of a name that begins so. After the name, it may quote the words.
fn lacks(error: &str, name: &str) -> bool {
    let name_only = error.split(',').next().unwrap_or_default();
    is_unknown_command(error) && name_only.to_ascii_uppercase().contains(name)
}

/// A command as a server knows it: what the script has as a call of it, and what it has not as a name alone, which the
/// server says it does not know.
struct InDialect<'a> {
    command: &'a Command,
    dialect: Dialect,
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
        to.text(if is_read { "EVALSHA_RO" } else { "EVALSHA" }).text(DIGEST.get_hash());
        to.number(command.counted_keys().unwrap_or(1) as u64);
        command.keys().for_each(|key| (to.0)(key));
        command.write_arguments(dialect.has(Dialect::OWN_CLOCK).then(unix_ms), &mut to);
    }
}

const COUNT: u8 = 1;
const PARTIAL: u8 = 2;
const STRICT: u8 = 4;

impl Command {
    /// Whether the script has it, too.
    pub fn is_scripted(&self) -> bool {
        match self {
            Self::Allow { .. } | Self::Peek { .. } | Self::Record { .. } | Self::Refund { .. } => true,
            Self::Block { .. } | Self::Unblock { .. } | Self::Info { .. } => true,
            Self::Mallow { .. } | Self::Budget { .. } => true,
            Self::Admit { .. } => self.admitted_hold().is_none(),
            _ => false,
        }
    }

    /// Whether it was sent as a name alone, for the script has not got it, to a server that has the module.
    fn is_known_by_name(&self, reply: &Reply) -> bool {
        let is_lacking = !matches!(self, Self::Server { .. }) && !self.is_scripted();
        is_lacking && matches!(reply, Reply::Error(text) if text.starts_with(KNOWN))
    }

    /// Whether it must not be sent to a server that perhaps does not know it: its error would quote the words, cut anywhere.
    fn is_to_be_known(&self) -> bool {
        let mut is_ascii = true;
        self.each(&mut |word| is_ascii &= word.is_ascii());
        !is_ascii && !matches!(self, Self::Server { .. })
    }

    /// What the script gets behind the keys; where its caller's clock decides, with the time.
    pub fn write_arguments(&self, at: Option<u64>, to: &mut Writer<'_>) {
        let at = at.filter(|_| !matches!(self, Self::Info { .. }));
        match (self.packed(), at) {
            (Some(packed), Some(at)) => {
                to.word(&[packed.as_slice(), &at.to_le_bytes()].concat());
            }
            (Some(packed), None) => {
                to.word(&packed);
            }
            (None, at) => {
                to.text(self.name().trim_start_matches(PREFIX));
                self.write_options(to);
                if let Some(at) = at {
                    to.text("AT").number(at);
                }
            }
        }
    }

    /// An ALLOW's or a PEEK's numbers in one argument, which costs the script less than words. `None` where only words say
    /// it.
    fn packed(&self) -> Option<[u8; 33]> {
        let (demand, flags) = match self {
            Self::Allow { demand, .. } if demand.block.is_none() => (demand, COUNT),
            Self::Peek { demand, .. } => (demand, 0),
            _ => return None,
        };
        let swlimit_window::Request { quota, cost, partial, strict } = demand.exact;
        let (resolution, subintervals) =
            (quota.geometry.resolution(), quota.geometry.window() / quota.geometry.resolution());
        if subintervals > MAX_SUBINTERVALS {
            return None;
        }
        let options = if partial { PARTIAL } else { 0 } | if strict { STRICT } else { 0 };
        let mut packed = [flags | options; 33];
        for (bytes, number) in packed[1..].chunks_exact_mut(8).zip([quota.limit, resolution, subintervals, cost]) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        Some(packed)
    }

    /// The reply in the module's numbers, where the script has packed these into bytes: an ALLOW's or a PEEK's.
    fn unpacked(&self, reply: Reply) -> Reply {
        let (Reply::Bytes(bytes), Self::Allow { demand, .. } | Self::Peek { demand, .. }) = (&reply, self) else {
            return reply;
        };
        let limit = i64::try_from(demand.exact.quota.limit).ok();
        let (Some(limit), Some([first, second, reset_after])) = (limit, numbers(bytes)) else { return reply };
        let (granted, remaining, retry_after) = if first > 0 { (first, second, 0) } else { (0, -first, second) };
        Reply::Array([granted, limit, remaining, retry_after, reset_after].map(Reply::Integer).to_vec())
    }
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use parking_lot::Mutex;

    use super::*;
    use crate::demand::Demand;
    use crate::protocol::command::HoldClause;
    use crate::quota::Quota;

    /// A server that gives prepared replies, in turn; and the names of the commands that it got.
    #[derive(Clone, Default)]
    struct Scripted(Arc<Mutex<(VecDeque<Reply>, Vec<String>)>>);

    impl Connection for Scripted {
        fn send(&self, command: &dyn Words) -> Pending<Reply> {
            let mut inner = self.0.lock();
            let mut words = Vec::new();
            command.each(&mut |word| words.push(String::from_utf8_lossy(word).into_owned()));
            inner.1.push(words.swap_remove(0));
            let reply = inner.0.pop_front().unwrap();
            Box::pin(async move { Ok(reply) })
        }

        fn send_all(&self, commands: &[&dyn Words]) -> Pending<Reply> {
            let replies: Vec<_> = commands.iter().map(|command| self.send(*command)).collect();
            Box::pin(async move {
                let mut all = Vec::new();
                for reply in replies {
                    all.push(reply.await?);
                }
                Ok(Reply::Array(all))
            })
        }
    }

    impl Scripted {
        fn connected(&self, module: Module) -> Encoded {
            Encoded::new(Box::new(self.clone()), module)
        }

        fn says(&self, replies: impl IntoIterator<Item = Reply>) {
            self.0.lock().0.extend(replies);
        }

        /// The names of what was sent since the last time.
        fn was_asked(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().1)
        }
    }

    fn error(text: &str) -> Reply {
        Reply::Error(text.into())
    }

    fn demand() -> Demand {
        Demand::of(&Quota::new(5, "1m").unwrap())
    }

    fn allow() -> Command {
        Command::allow(b"k", &demand())
    }

    fn hold(id: &[u8]) -> Command {
        let hold = HoldClause { limit: 5, ttl: 60_000, id: id.into(), cost: 1, own_id: true };
        Command::Hold { key: b"k"[..].into(), hold, wait: None }
    }

    #[tokio::test]
    async fn found_out_by_the_first_reply() {
        let server = Scripted::default();
        let connection = server.connected(Module::Auto);
        server.says([Reply::Integer(1), Reply::Integer(2)]);
        assert_eq!(connection.backend(), None);
        assert_eq!(connection.send(&allow()).await, Ok(Reply::Integer(1)));
        assert_eq!(connection.backend(), Some(Backend::Module));
        connection.send(&allow()).await.unwrap();
        assert_eq!(server.was_asked(), ["SWLIMIT.ALLOW"; 2]);

        let connection = server.connected(Module::Auto);
        let unknown = "ERR unknown command 'SWLIMIT.ALLOW', with args beginning with: 'k' ";
        server.says([error(unknown), error("NOSCRIPT No matching script."), Reply::Nil, Reply::Integer(3)]);
        assert_eq!(connection.send(&allow()).await, Ok(Reply::Integer(3)));
        assert_eq!(connection.backend(), Some(Backend::Script));
        assert_eq!(server.was_asked(), ["SWLIMIT.ALLOW", "EVALSHA", "SCRIPT", "EVALSHA"]);
        // What it has not is asked for as it is.
        server.says([error("ERR unknown command 'SWLIMIT.TOP'")]);
        connection.send(&Command::Top { count: 10 }).await.unwrap();
        assert_eq!(server.was_asked(), ["SWLIMIT.TOP"]);

        let connection = server.connected(Module::Always);
        server.says([error(unknown)]);
        assert_eq!(connection.send(&allow()).await, Ok(error(unknown)));
        assert_eq!(connection.backend(), None);
    }

    /// A server's error would quote what it does not know.
    #[tokio::test]
    async fn found_out_before_bytes_are_sent() {
        let unknown = "ERR unknown command 'SWLIMIT.PEEK', with args beginning with: ";
        let hold = hold(b"\xff");
        let server = Scripted::default();
        let connection = server.connected(Module::Auto);
        server.says([error(unknown), error("ERR unknown command 'SWLIMIT.HOLD'")]);
        assert_eq!(connection.send(&hold).await, Ok(error("ERR unknown command 'SWLIMIT.HOLD'")));
        assert_eq!(connection.backend(), Some(Backend::Script));

        for (module, why) in [(Module::Always, unknown), (Module::Auto, "LOADING Redis is loading")] {
            let connection = server.connected(module);
            server.says([error(why)]);
            assert_eq!((connection.send(&hold).await, connection.backend()), (Ok(error(why)), None));
        }

        let connection = server.connected(Module::Auto);
        server.says([error("ERR wrong number of arguments for 'swlimit.peek' command"), Reply::Integer(1)]);
        let replies = connection.send_all(std::slice::from_ref(&hold)).await;
        assert_eq!((replies, connection.backend()), (Ok(Reply::Array(vec![Reply::Integer(1)])), Some(Backend::Module)));
        let asked = ["PEEK", "HOLD", "PEEK", "PEEK", "PEEK", "HOLD"].map(|name| format!("SWLIMIT.{name}"));
        assert_eq!(server.was_asked(), asked);
    }

    /// A server that has neither the module nor scripts is asked for the module again: it may be loading it.
    #[tokio::test]
    async fn a_server_that_has_neither_for_a_while() {
        let unknown =
            |name: &str| error(&format!("ERR unknown command '{name}', with args beginning with: 'EVALSHA' "));
        let neither = ["SWLIMIT.ALLOW", "EVALSHA"].map(unknown);
        let server = Scripted::default();
        let connection = server.connected(Module::Auto);
        for _ in 0..2 {
            server.says(neither.clone());
            assert_eq!((connection.send(&allow()).await, connection.backend()), (Ok(unknown("EVALSHA")), None));
        }
        server.says(["SWLIMIT.ALLOW", "SWLIMIT.ALLOW", "EVALSHA", "EVALSHA"].map(unknown));
        let (one, other) = (connection.send(&allow()), connection.send(&allow()));
        assert_eq!((one.await, other.await), (Ok(unknown("EVALSHA")), Ok(unknown("EVALSHA"))));
        server.says([Reply::Integer(1)]);
        assert_eq!(connection.send(&allow()).await, Ok(Reply::Integer(1)));
        assert_eq!(connection.backend(), Some(Backend::Module));

        let connection = server.connected(Module::Never);
        server.was_asked();
        for _ in 0..2 {
            server.says([unknown("EVALSHA")]);
            assert_eq!(connection.send(&allow()).await, Ok(unknown("EVALSHA")));
        }
        assert_eq!(server.was_asked(), ["EVALSHA"; 2]);
    }

    /// What the script has not got tells whether the module has been loaded meanwhile.
    #[tokio::test]
    async fn a_module_that_is_loaded_later() {
        let hold = hold(b"h");
        let known = || error("ERR wrong number of arguments for 'swlimit.hold' command");
        let server = Scripted::default();
        let connection = server.connected(Module::Auto);
        server.says([error("ERR unknown command 'SWLIMIT.ALLOW'"), Reply::Integer(1)]);
        connection.send(&allow()).await.unwrap();
        server.says([known(), known(), Reply::Integer(2), Reply::Integer(3)]);
        let (one, other) = (connection.send(&hold), connection.send(&hold));
        assert_eq!((one.await, other.await), (Ok(Reply::Integer(2)), Ok(Reply::Integer(3))));
        assert_eq!(connection.backend(), Some(Backend::Module));
        let asked = ["SWLIMIT.ALLOW", "EVALSHA"].into_iter().chain(["SWLIMIT.HOLD"; 4]);
        assert_eq!(server.was_asked(), asked.collect::<Vec<_>>());

        let connection = server.connected(Module::Never);
        server.says([known()]);
        assert_eq!(connection.send(&hold).await, Ok(error("ERR unknown command 'SWLIMIT.HOLD'")));
        assert_eq!(connection.backend(), Some(Backend::Script));
    }

    /// Only what was not executed is asked again, in order, and each with the word that it may be asked here.
    #[tokio::test]
    async fn a_script_that_is_missing_in_a_pipeline() {
        let server = Scripted::default();
        let connection = server.connected(Module::Never);
        server.was_asked();
        let peek = Command::peek(b"k", &demand());
        let commands = [Command::TIME, Command::ASKING, allow(), Command::ASKING, peek];
        let replies = [Reply::Integer(0), Reply::Nil, Reply::Integer(2), Reply::Nil, error("NOSCRIPT x")];
        server.says(replies);
        server.says([Reply::Nil, Reply::Nil, error("ERR unknown command 'EVALSHA_RO'")]);
        server.says([Reply::Nil, Reply::Integer(5)]);
        let expected = [Reply::Integer(0), Reply::Nil, Reply::Integer(2), Reply::Nil, Reply::Integer(5)];
        assert_eq!(connection.send_all(&commands).await, Ok(Reply::Array(expected.to_vec())));
        let expected = [
            "TIME",
            "ASKING",
            "EVALSHA",
            "ASKING",
            "EVALSHA_RO",
            "SCRIPT",
            "ASKING",
            "EVALSHA_RO",
            "ASKING",
            "EVALSHA",
        ];
        assert_eq!(server.was_asked(), expected);
        // A user who may not load it gets that error.
        server.says([error("NOSCRIPT x"), error("NOPERM no"), error("NOSCRIPT x")]);
        assert_eq!(connection.send(&allow()).await, Ok(error("NOPERM no")));
    }

    /// The script answers bytes with bytes.
    #[tokio::test]
    async fn decisions_come_packed() {
        let bytes = |numbers: [f64; 3]| Reply::Bytes(numbers.into_iter().flat_map(f64::to_le_bytes).collect());
        let decision = |numbers: [i64; 5]| Reply::Array(numbers.map(Reply::Integer).to_vec());
        let server = Scripted::default();
        let connection = server.connected(Module::Never);
        let most = (1_i64 << 53) - 1;
        server.says([bytes([2.0, most as f64, 60_000.0]), bytes([-0.0, -1.0, 0.0]), bytes([-3.0, 7.0, 9.0])]);
        assert_eq!(connection.send(&allow()).await, Ok(decision([2, 5, most, 0, 60_000])));
        let both = vec![decision([0, 5, 0, -1, 0]), decision([0, 5, 3, 7, 9])];
        assert_eq!(connection.send_all(&[allow(), allow()]).await, Ok(Reply::Array(both)));
    }
}
