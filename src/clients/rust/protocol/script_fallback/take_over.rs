//! Gives the module the keys that the script has written. To the module they are of a wrong type, as the module's are
//! to the script.

use std::sync::{Arc, LazyLock};

use tokio::time::timeout;

use super::{is_unloaded, Dialect, Inner};
use crate::mode::Module;
use crate::protocol::command::{Command, KEY};
use crate::reason::is_unknown_command;
use crate::statistics::Count;
use crate::transport::{Failure, Reply};

const SCRIPT: &str = include_str!("../../../../server/script/takeover.lua");
static DIGEST: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SCRIPT));
/// By its digest, and where the server does not know it by its text.
static CALLS: LazyLock<[[&'static str; 4]; 2]> =
    LazyLock::new(|| [["EVALSHA", DIGEST.get_hash(), "1", KEY], ["EVAL", SCRIPT, "1", KEY]]);
/// Replies that have come wait for so many trips of others, at most: with their own, no longer than a connection may be
/// silent.
const TRIPS: u32 = 2;
/// So begins the error of a command, in place of the server's, whose connection failed before its key was taken over.
const NOT_EXECUTED: &str = "NOTEXECUTED";

impl Inner {
    /// Whether a key of this command may be the other one's.
    pub(super) fn is_of_wrong_type(&self, command: &Command, reply: &Reply) -> bool {
        let is_server = matches!(command, Command::Server { .. });
        !is_server && self.module != Module::Never && is_wrong_type(reply)
    }

    /// Asks the module again about keys of a wrong type, if the server has it, once they were taken over where the
    /// script wrote them.
    pub(super) async fn take_over(&self, commands: &[Command], replies: &mut [Reply]) -> Result<(), Failure> {
        let each = commands.iter().zip(&*replies).enumerate();
        let wrong = each.filter(|(_, (command, reply))| self.is_of_wrong_type(command, reply));
        let wrong: Vec<_> = wrong.map(|(place, (command, _))| (place, command.clone())).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let asked = commands.iter().filter(|command| !matches!(command, Command::Server { .. })).count();
        let others_came = wrong.len() < asked;
        // Boxed, because it is rare: it would enlarge every command's future.
        let taking_over = Box::pin(self.take_over_all(commands, wrong, replies));
        if others_came {
            // What the server has replied to the others counts, and is not sent again if the connection fails now.
            let taken = timeout(TRIPS * self.timeout, taking_over).await;
            if let Ok(Err(failure)) = taken {
                let refused = replies.iter_mut().filter(|reply| is_wrong_type(reply));
                refused.for_each(|reply| *reply = Reply::Error(format!("{NOT_EXECUTED} {failure}")));
            }
            return Ok(());
        }
        taking_over.await
    }

    async fn take_over_all(
        &self,
        commands: &[Command],
        mut wrong: Vec<(usize, Command)>,
        replies: &mut [Reply],
    ) -> Result<(), Failure> {
        if !self.has_module().await? {
            return Ok(());
        }
        let keys = wrong.iter().flat_map(|(place, command)| command.keys().map(|key| (*place, Arc::from(key))));
        let mut keys: Vec<(usize, Arc<[u8]>)> = keys.collect();
        for words in CALLS.iter() {
            let call = |(place, key): &(_, Arc<[u8]>)| (*place, Command::Server { words, key: Some(key.clone()) });
            let calls: Vec<_> = keys.iter().map(call).collect();
            let mut unloaded = Vec::new();
            for ((place, key), reply) in keys.into_iter().zip(self.send_among(commands, &calls).await?) {
                match &reply {
                    reply if reply.integer() == Some(1) => self.took_over(&key),
                    Reply::Error(_) if is_unloaded(&reply) => unloaded.push((place, key)),
                    // A server without scripts has no keys of theirs.
                    Reply::Error(text) if !is_unknown_command(text) => replies[place] = reply,
                    _ => {}
                }
            }
            keys = unloaded;
            if keys.is_empty() {
                break;
            }
        }
        wrong.retain(|(place, _)| is_wrong_type(&replies[*place]));
        if wrong.is_empty() {
            return Ok(());
        }
        // Until the replies come, nobody knows whether these are executed now.
        wrong.iter().for_each(|(place, _)| replies[*place] = Reply::Nil);
        let came = self.send_among(commands, &wrong).await?;
        wrong.iter().zip(came).for_each(|((place, _), reply)| replies[*place] = reply);
        Ok(())
    }

    async fn has_module(&self) -> Result<bool, Failure> {
        if self.dialect() != Dialect::MODULE {
            self.find_out().await?;
        }
        Ok(self.dialect() == Dialect::MODULE)
    }

    fn took_over(&self, key: &[u8]) {
        self.counters.count(Count::TakenOver, 1);
        let key = String::from_utf8_lossy(key);
        tracing::info!("the module is loaded now; took over key \"{}\", which the script wrote", key.escape_debug());
    }
}

fn is_wrong_type(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("WRONGTYPE"))
}
