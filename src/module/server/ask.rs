//! Commands that the module itself asks of the server.

use std::ffi::CStr;

use redis_module::raw;

use super::context::Context;
use super::text::{OwnText, Text};

/// What the server answers.
#[derive(Debug)]
pub enum Answer {
    /// An integer.
    Integer(i64),
    /// A string.
    Text(Vec<u8>),
    /// An array.
    Array(Vec<Answer>),
    /// An error, with its code.
    Error(String),
    /// The key's slot is not this node's, or is about to leave it.
    Elsewhere,
    /// Anything else.
    Other,
}

impl Context {
    /// Ask for a command as a script would: refused where the server cannot write to its disk, lacks replicas or is one
    /// itself. What it does is told to replicas and the append-only file.
    pub(super) fn ask(self, command: &CStr, words: &[&Text]) -> Answer {
        self.ask_as(command, words, c"!vSE")
    }

    /// Ask for a command that is also refused where the server has no memory left.
    pub(super) fn ask_for_memory(self, command: &CStr, words: &[&Text]) -> Answer {
        // The server refuses by what it found before the last client's command. What it finds now is better, except that
        // only it knows whether eviction helps.
        if !self.has_flags(raw::REDISMODULE_CTX_FLAGS_OOM) {
            self.ask(command, words)
        } else if self.has_flags(raw::REDISMODULE_CTX_FLAGS_EVICT) {
            self.ask_as(command, words, c"!vSME")
        } else {
            Answer::Error(OUT_OF_MEMORY.into())
        }
    }

    /// Whether a key's slot is not this node's, or is about to leave it together with the key.
    pub(super) fn is_elsewhere(self, key: &Text) -> bool {
        self.has_flags(raw::REDISMODULE_CTX_FLAGS_CLUSTER) && matches!(self.ask(c"EXISTS", &[key]), Answer::Elsewhere)
    }

    /// A setting of the server's. Scripts may not ask for it.
    pub(super) fn setting(self, name: &[u8]) -> Option<Vec<u8>> {
        let [get, name] = [&b"GET"[..], name].map(OwnText::new);
        match self.ask_as(c"CONFIG", &[&get, &name], c"vE") {
            Answer::Array(mut pair) => match pair.pop() {
                Some(Answer::Text(value)) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// E: refusals come as replies. Without it Valkey 9.1 crashes where S makes it refuse.
    fn ask_as(self, command: &CStr, words: &[&Text], format: &CStr) -> Answer {
        let words: Vec<_> = words.iter().map(|word| word.raw()).collect();
        // SAFETY: a valid context; a vector and its length for the one place in the format. The answer is ours to free.
        let answer = unsafe {
            let (first, len) = (words.as_ptr(), words.len());
            let reply = api!(RedisModule_Call(self.raw(), command.as_ptr(), format.as_ptr(), first, len));
            let answer = Answer::read(reply);
            if !reply.is_null() {
                api!(RedisModule_FreeCallReply(reply));
            }
            answer
        };
        match answer {
            Answer::Error(error) => refusal(error),
            answer => answer,
        }
    }
}

/// What a client would be told where the server tells modules something of their own. The words, because `errno` says it too
/// but is not set by the errors that commands end with.
fn refusal(error: String) -> Answer {
    match error.strip_prefix("ERR ") {
        Some(text) if text.starts_with("Attempted to access a non local key") => Answer::Elsewhere,
        Some(text) if text.ends_with("while the cluster is down") => Answer::Error(DOWN.into()),
        Some(text) if text.ends_with("while the cluster is down and readonly") => {
            Answer::Error(DOWN_FOR_WRITING.into())
        }
        _ => Answer::Error(error),
    }
}

/// What the server itself tells clients.
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const DOWN: &str = "CLUSTERDOWN The cluster is down";
const DOWN_FOR_WRITING: &str = "CLUSTERDOWN The cluster is down and only accepts read commands";

impl Answer {
    /// The integer, if it is one.
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Answer::Integer(integer) => Some(*integer),
            _ => None,
        }
    }

    /// # Safety
    /// An answer of the server's, or null.
    unsafe fn read(reply: *mut raw::RedisModuleCallReply) -> Self {
        if reply.is_null() {
            return Answer::Other;
        }
        // SAFETY: the caller's promise; elements belong to their array, and bytes are read before either is freed.
        unsafe {
            let text = || {
                let mut len = 0;
                let bytes = api!(RedisModule_CallReplyStringPtr(reply, &mut len));
                std::slice::from_raw_parts(bytes.cast::<u8>(), len).to_vec()
            };
            match api!(RedisModule_CallReplyType(reply)) as isize {
                raw::REDISMODULE_REPLY_INTEGER => Answer::Integer(api!(RedisModule_CallReplyInteger(reply))),
                raw::REDISMODULE_REPLY_STRING => Answer::Text(text()),
                raw::REDISMODULE_REPLY_ERROR => Answer::Error(String::from_utf8_lossy(&text()).into_owned()),
                raw::REDISMODULE_REPLY_ARRAY => {
                    let elements = 0..api!(RedisModule_CallReplyLength(reply));
                    let element = |index| Self::read(api!(RedisModule_CallReplyArrayElement(reply, index)));
                    Answer::Array(elements.map(element).collect())
                }
                _ => Answer::Other,
            }
        }
    }
}
