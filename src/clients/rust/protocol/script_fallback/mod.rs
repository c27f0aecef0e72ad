//! The module's commands on servers that have not loaded it: a script makes the same decisions.
//!
//! Each connection learns from the first reply whether its server has the module or needs the script, and from then on
//! writes commands for that. A command that the server did not know, or whose script it did not know, was not executed,
//! so it is sent again at once. An error of that kind quotes the command's words, and a quotation that is not UTF-8 ends
//! the connection: words that are not ASCII are only sent once the server is known, and commands with ids once the server
//! is known to have them. A server that knows any of the module's commands is never the script's: what it does not know,
//! its module is too old for. Where the module is loaded later, [`take_over`] gives it the script's keys.

mod call;
mod take_over;
#[cfg(test)]
mod tests;
mod texts;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::call::InDialect;
use self::texts::Texts;
use super::command::{Command, PREFIX};
use crate::mode::Module;
use crate::reason::{is_unknown_command, Reason};
use crate::servers::Backend;
use crate::statistics::Counters;
use crate::transport::{Connection, Events, Failure, Pending, Purpose, Reply, Transport, Words};

/// The script.
pub(crate) const SCRIPT: &str = include_str!("../../../../server/script/swlimit.lua");
/// The script refuses windows of more subintervals, with an error that only its words have.
pub(super) const MAX_SUBINTERVALS: u64 = 4096;
/// How often commands are sent again: once for the script in place of the module, once for EVALSHA in place of
/// EVALSHA_RO, once for a script that was not loaded, once with this machine's clock.
pub(super) const ROUNDS: usize = 4;
/// With this the script says that it could not ask for the time.
const NO_CLOCK: &str = "ERR no clock: ";
/// So begins the error of a command, in place of the server's, for which the server's module is too old; its name follows.
pub(crate) const TOO_OLD: &str = "TOOOLD ";

/// A transport whose connections write commands as their server knows them.
pub(crate) struct Encoding {
    transport: Box<dyn Transport>,
    module: Module,
    timeout: Duration,
    counters: Arc<Counters>,
    /// By the address of each server.
    texts: Mutex<HashMap<Option<Box<str>>, Arc<Texts>>>,
}

/// A connection that writes commands as its server knows them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Encoded(Arc<Inner>);

struct Inner {
    connection: Box<dyn Connection>,
    module: Module,
    /// A trip takes no longer.
    timeout: Duration,
    counters: Arc<Counters>,
    texts: Arc<Texts>,
    /// A [`Dialect`]. What a server lacks is only learned from what it refuses.
    dialect: AtomicU8,
    /// Which commands with ids the server has, and which it lacks: a bit for each.
    has: AtomicU8,
    lacks: AtomicU8,
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
    /// Besides: with the script's text.
    const TEXT: Self = Self(32);

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
    pub fn new(transport: Box<dyn Transport>, module: Module, timeout: Duration, counters: Arc<Counters>) -> Self {
        Self { transport, module, timeout, counters, texts: Mutex::default() }
    }

    /// Connects, as [`Transport::connect`] says.
    pub fn connect(&self, node: Option<&str>, purpose: Purpose, events: Events) -> Pending<Encoded> {
        let connecting = self.transport.connect(node, purpose, events);
        let (module, timeout, counters) = (self.module, self.timeout, Arc::clone(&self.counters));
        let texts = Arc::clone(self.texts.lock().entry(node.map(Into::into)).or_default());
        Box::pin(async move { Ok(Encoded::new(connecting.await?, module, timeout, counters, texts)) })
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

    pub fn follows(&self) -> bool {
        self.transport.follows()
    }
}

impl Encoded {
    fn new(
        connection: Box<dyn Connection>,
        module: Module,
        timeout: Duration,
        counters: Arc<Counters>,
        texts: Arc<Texts>,
    ) -> Self {
        let dialect = AtomicU8::new(Dialect::of(module).0);
        let (has, lacks) = Default::default();
        Self(Arc::new(Inner { connection, module, timeout, counters, texts, dialect, has, lacks }))
    }

    /// Sends a command, as [`Connection::send`] says.
    pub fn send(&self, command: &Command) -> Pending<Reply> {
        let dialect = self.0.written(command);
        if self.0.must_ask_first(command) {
            let replies = self.send_all(std::slice::from_ref(command));
            return Box::pin(tokio::task::unconstrained(async move {
                match replies.await? {
                    Reply::Array(mut replies) => {
                        replies.pop().ok_or_else(|| Failure::Connection(Reason::BadReply.because("no reply")))
                    }
                    reply => Ok(reply),
                }
            }));
        }
        let texts = self.0.texts.sent();
        let sent = self.0.connection.send(&InDialect { command, dialect });
        let (inner, command) = (Arc::clone(&self.0), command.clone());
        Box::pin(tokio::task::unconstrained(async move {
            let reply = sent.await?;
            let is_doubtful = inner.is_doubtful(&command, &reply);
            if !is_doubtful && !inner.is_refused(&command, &reply) && !inner.is_of_wrong_type(&command, &reply) {
                if dialect.has(Dialect::SCRIPT) && !dialect.has(Dialect::TEXT) && command.is_scripted() {
                    inner.texts.is_known();
                }
                return Ok(inner.understood(&command, reply));
            }
            let mut replies = inner.send_again(&[command], vec![reply], texts).await?;
            replies.pop().ok_or_else(|| Failure::Connection(Reason::BadReply.because("no reply")))
        }))
    }

    /// Sends several commands in one go, as [`Connection::send_all`] says.
    pub fn send_all(&self, commands: &[Command]) -> Pending<Reply> {
        let (dialect, texts) = (self.0.dialect(), self.0.texts.sent());
        if commands.iter().any(|command| self.0.must_ask_first(command)) {
            let (encoded, commands) = (self.clone(), commands.to_vec());
            return Box::pin(tokio::task::unconstrained(async move {
                match encoded.0.ask_first(&commands).await? {
                    Some(missing) => Ok(Reply::Array(vec![missing; commands.len()])),
                    None => encoded.send_all(&commands).await,
                }
            }));
        }
        let sent = self.0.send_in(dialect, commands);
        let (inner, commands) = (Arc::clone(&self.0), commands.to_vec());
        Box::pin(tokio::task::unconstrained(async move {
            match sent.await? {
                Reply::Array(replies) => inner.send_again(&commands, replies, texts).await.map(Reply::Array),
                reply => Ok(reply),
            }
        }))
    }

    /// Asks, while the script decides, whether the module is there by now.
    pub async fn look_for_module(&self) -> Result<(), Failure> {
        if self.0.module == Module::Auto && self.0.dialect().has(Dialect::SCRIPT) {
            self.0.find_out().await?;
        }
        Ok(())
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

    /// How a command is written: with the script's text where the server forgets that.
    fn written(&self, command: &Command) -> Dialect {
        let dialect = self.dialect();
        match dialect.has(Dialect::SCRIPT) && command.is_scripted() && self.texts.needs_text() {
            true => Dialect(dialect.0 | Dialect::TEXT.0),
            false => dialect,
        }
    }

    fn send_in(&self, dialect: Dialect, commands: &[Command]) -> Pending<Reply> {
        let commands: Vec<_> = commands.iter().map(|command| InDialect { command, dialect }).collect();
        let words: Vec<&dyn Words> = commands.iter().map(|command| command as &dyn Words).collect();
        self.connection.send_all(&words)
    }

    /// Finds out by asking; the error where the server decides by neither, or not now.
    async fn find_out(&self) -> Result<Option<Reply>, Failure> {
        let reply = self.connection.send(&Command::PEEK_BY_NAME).await?;
        Ok(self.learn_from_name(reply))
    }

    /// Learns from the reply to the name of a PEEK alone; an error that says neither.
    fn learn_from_name(&self, reply: Reply) -> Option<Reply> {
        match &reply {
            Reply::Error(text) if is_unknown_command(text) => match self.dialect() {
                Dialect::UNTRIED if self.module == Module::Auto => drop(self.learn(Dialect::SCRIPT)),
                dialect if dialect.has(Dialect::SCRIPT) => {}
                _ => return Some(reply),
            },
            reply if is_known(reply) => self.found_module(),
            _ => return Some(reply),
        }
        None
    }

    /// Whether the server must be asked by names alone before this command may be sent to it.
    fn must_ask_first(&self, command: &Command) -> bool {
        let bit = command.id_bit();
        match self.dialect() {
            Dialect::UNTRIED => bit > 0 || command.is_to_be_known(),
            dialect if dialect.has(Dialect::SCRIPT) => false,
            _ => bit & !self.has.load(Ordering::Relaxed) > 0,
        }
    }

    /// Asks by names alone for what commands need; the error of one that may not be sent.
    async fn ask_first(&self, commands: &[Command]) -> Result<Option<Reply>, Failure> {
        let needed = commands.iter().fold(0, |needed, command| needed | command.id_bit());
        let lacking = || Command::named(needed & self.lacks.load(Ordering::Relaxed)).next();
        let too_old = |(_, name): (u8, Command)| Reply::Error(format!("{TOO_OLD}{}", name.name()));
        if let Some(lacking) = lacking() {
            return Ok(Some(too_old(lacking)));
        }
        let is_untried = self.dialect() == Dialect::UNTRIED;
        // All of them: they are needed together, and this is a round trip.
        let asked: Vec<_> = if needed == 0 { Vec::new() } else { Command::named(u8::MAX).collect() };
        let names = is_untried.then_some(Command::PEEK_BY_NAME).into_iter();
        let names: Vec<_> = names.chain(asked.iter().map(|(_, name)| name.clone())).collect();
        let Reply::Array(replies) = self.send_in(Dialect::UNTRIED, &names).await? else {
            return Err(Failure::Connection(Reason::BadReply.because("no replies")));
        };
        let mut replies = replies.into_iter();
        if is_untried {
            let peeked = replies.next().and_then(|reply| self.learn_from_name(reply));
            if peeked.is_some() || self.dialect().has(Dialect::SCRIPT) {
                return Ok(peeked);
            }
        }
        for ((bit, _), reply) in asked.into_iter().zip(replies) {
            match &reply {
                Reply::Error(text) if is_unknown_command(text) => self.lacks.fetch_or(bit, Ordering::Relaxed),
                reply if is_known(reply) => self.has.fetch_or(bit, Ordering::Relaxed),
                _ => return Ok(Some(reply)),
            };
        }
        Ok(lacking().map(too_old))
    }

    /// Whether the server does not know a command that older modules have not: it may have such a module.
    fn is_doubtful(&self, command: &Command, reply: &Reply) -> bool {
        let is_in_all = matches!(command, Command::Allow { .. } | Command::Peek { .. } | Command::Server { .. });
        let is_unknown = matches!(reply, Reply::Error(text) if is_unknown_command(text) && lacks(text, PREFIX));
        !is_in_all && is_unknown && self.module != Module::Never && !self.dialect().has(Dialect::SCRIPT)
    }

    /// Whether a command was not executed for what the server lacks. Learns from the reply what that is.
    fn is_refused(&self, command: &Command, reply: &Reply) -> bool {
        if !command.is_scripted() {
            let has_module = self.module == Module::Auto && command.is_known_by_name(reply);
            if has_module {
                self.found_module();
            }
            return has_module;
        }
        let (dialect, Reply::Error(text)) = (self.dialect(), reply) else {
            self.learn_from_answer();
            return false;
        };
        if self.is_doubtful(command, reply) {
            return false;
        }
        let is_scripted = dialect.has(Dialect::SCRIPT);
        if text.starts_with("NOSCRIPT") {
            return true;
        }
        let lacks_read_only = lacks(text, "EVALSHA_RO") || lacks(text, "EVAL_RO");
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

    /// The server knows the module's commands, whatever was known before.
    fn found_module(&self) {
        if Dialect(self.dialect.swap(Dialect::MODULE.0, Ordering::Relaxed)).has(Dialect::SCRIPT) {
            tracing::info!("the rate limit server has loaded swlimit: the module decides");
        }
    }

    /// The server answered a command in this dialect.
    fn learn_from_answer(&self) {
        let dialect = self.dialect();
        if !dialect.has(Dialect::SCRIPT) {
            let (untried, module) = (Dialect::UNTRIED.0, Dialect::MODULE.0);
            let _ = self.dialect.compare_exchange(untried, module, Ordering::Relaxed, Ordering::Relaxed);
        } else if !dialect.has(Dialect::ANSWERED) && self.learn(Dialect::ANSWERED) {
            tracing::info!("the rate limit server has not loaded swlimit: its script decides");
        }
    }

    /// Whether that is news.
    fn learn(&self, more: Dialect) -> bool {
        self.dialect.fetch_or(more.0, Ordering::Relaxed) & more.0 == 0
    }

    /// The replies, once what was not executed has been sent again in its order.
    async fn send_again(
        &self,
        commands: &[Command],
        mut replies: Vec<Reply>,
        texts: u64,
    ) -> Result<Vec<Reply>, Failure> {
        if commands.iter().zip(&replies).any(|(command, reply)| self.is_doubtful(command, reply)) {
            self.tell_too_old(commands, &mut replies).await?;
        }
        for _ in 0..ROUNDS {
            let each = commands.iter().zip(&replies).enumerate();
            let refused = each.filter(|(_, (command, reply))| self.is_refused(command, reply));
            let refused: Vec<_> = refused.map(|(place, (command, _))| (place, command.clone())).collect();
            if refused.is_empty() {
                break;
            }
            let is_unloaded = refused.iter().any(|(place, _)| is_unloaded(&replies[*place]));
            // Boxed, because it is rare: it would enlarge every command's future.
            let came = match is_unloaded {
                true => Box::pin(self.send_texts(commands, &refused, texts)).await?,
                false => Box::pin(self.send_among(commands, &refused)).await?,
            };
            refused.iter().zip(came).for_each(|((place, _), reply)| replies[*place] = reply);
        }
        self.take_over(commands, &mut replies).await?;
        Ok(commands.iter().zip(replies).map(|(command, reply)| self.understood(command, reply)).collect())
    }

    /// Sends commands whose script the server did not know, the text with them: EVAL. One text is under way to a server
    /// at a time: where another one was sent meanwhile, the server may know the script by now.
    async fn send_texts(
        &self,
        others: &[Command],
        refused: &[(usize, Command)],
        texts: u64,
    ) -> Result<Vec<Reply>, Failure> {
        let keys = || refused.iter().filter_map(|(_, command)| command.key());
        keys().for_each(|key| self.texts.is_unknown(key));
        let _sending = self.texts.sending.lock().await;
        if self.texts.sent() != texts && !self.texts.needs_text() {
            let came = self.send_among(others, refused).await?;
            if !came.iter().any(is_unloaded) {
                return Ok(came);
            }
        }
        let dialect = Dialect(self.dialect().0 | Dialect::TEXT.0);
        let came = self.send_among_in(dialect, others, refused).await?;
        keys().for_each(|key| self.texts.was_sent(key));
        Ok(came)
    }

    /// Finds out whether the module is missing or too old. Where it is too old, says so in place of the server.
    async fn tell_too_old(&self, commands: &[Command], replies: &mut [Reply]) -> Result<(), Failure> {
        let is_there = self.find_out().await?.is_none() && !self.dialect().has(Dialect::SCRIPT);
        for (command, reply) in commands.iter().zip(replies) {
            if is_there && self.is_doubtful(command, reply) {
                *reply = Reply::Error(format!("{TOO_OLD}{}", command.name()));
            }
        }
        Ok(())
    }

    /// Sends some commands in their places among others; their replies.
    async fn send_among(&self, others: &[Command], commands: &[(usize, Command)]) -> Result<Vec<Reply>, Failure> {
        self.send_among_in(self.dialect(), others, commands).await
    }

    async fn send_among_in(
        &self,
        dialect: Dialect,
        others: &[Command],
        commands: &[(usize, Command)],
    ) -> Result<Vec<Reply>, Failure> {
        let mut all = Vec::with_capacity(commands.len());
        let mut answers = Vec::with_capacity(commands.len());
        for (place, command) in commands {
            // A node that takes over a slot needs ASKING before each command.
            let asking = place.checked_sub(1).and_then(|before| others.get(before));
            all.extend(asking.filter(|command| **command == Command::ASKING).cloned());
            answers.push(all.len());
            all.push(command.clone());
        }
        let Reply::Array(mut came) = self.send_in(dialect, &all).await? else {
            return Err(Failure::Connection(Reason::BadReply.because("no replies")));
        };
        let taken =
            |answer: usize| came.get_mut(answer).map_or(Reply::Nil, |reply| std::mem::replace(reply, Reply::Nil));
        Ok(answers.into_iter().map(taken).collect())
    }

    /// The reply as the module gives it. A command that the script has not is unknown where nothing else may be asked.
    fn understood(&self, command: &Command, reply: Reply) -> Reply {
        if self.module == Module::Never && command.is_known_by_name(&reply) {
            return Reply::Error(format!("ERR unknown command '{}'", command.name()));
        }
        if command.warms_up() && !self.dialect().has(Dialect::SCRIPT) && is_of_older_module(&reply) {
            return Reply::Error(format!("{TOO_OLD}WARMUP"));
        }
        command.unpacked(reply)
    }
}

/// Whether the reply to a command's name alone says that the server knows the command.
fn is_known(reply: &Reply) -> bool {
    let is = |text: &String| text.starts_with("ERR wrong number of arguments") || text.starts_with("NOPERM ");
    matches!(reply, Reply::Error(text) if is(text))
}

/// Whether a module that knows no WARMUP refused a command with it: as an option, or in the place of a limit.
fn is_of_older_module(reply: &Reply) -> bool {
    let is = |text: &String| text == "ERR syntax error near 'WARMUP'" || text.starts_with("ERR limit must be");
    matches!(reply, Reply::Error(text) if is(text))
}

fn is_unloaded(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("NOSCRIPT"))
}

/// Whether an error says that there is no command of a name that begins so. After the name, it may quote the words.
fn lacks(error: &str, name: &str) -> bool {
    let name_only = error.split(',').next().unwrap_or_default();
    is_unknown_command(error) && name_only.to_ascii_uppercase().contains(name)
}
