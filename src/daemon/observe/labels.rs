//! The labels of metrics and traces, and the target of traces.

use std::borrow::Cow;

/// The target that separates spans from logs.
pub const TRACES: &str = "swlimitd::traces";

/// The longest label in bytes; longer ones are cut.
const MAX_LABEL: usize = 200;

/// The protocol of a request, or its command in the HTTP API.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Grpc,
    Json,
    Auth,
    Allow,
    AllowAll,
    Peek,
    Record,
    Acquire,
    Refund,
    Block,
    Unblock,
    Hold,
    Release,
    Renew,
    Budget,
    Admit,
    Settle,
    Demo,
}

impl Api {
    pub const NAMES: [&str; 18] = [
        "grpc",
        "json",
        "auth",
        "v1/allow",
        "v1/allow_all",
        "v1/peek",
        "v1/record",
        "v1/acquire",
        "v1/refund",
        "v1/block",
        "v1/unblock",
        "v1/hold",
        "v1/release",
        "v1/renew",
        "v1/budget",
        "v1/admit",
        "v1/settle",
        "demo",
    ];

    /// The commands that decide.
    pub const DECIDING: [Self; 9] = [
        Self::Allow,
        Self::AllowAll,
        Self::Peek,
        Self::Record,
        Self::Acquire,
        Self::Hold,
        Self::Budget,
        Self::Admit,
        Self::Demo,
    ];

    /// The commands that may wait for their turn.
    pub const WAITING: [Self; 2] = [Self::Acquire, Self::Hold];

    pub fn waits(self) -> bool {
        Self::WAITING.contains(&self)
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The result of a request.
#[derive(Clone, Copy)]
pub enum Outcome {
    Ok,
    OverLimit,
    Error,
    /// The caller gave up first.
    Cancelled,
}

impl Outcome {
    pub const NAMES: [&str; 4] = ["ok", "over_limit", "error", "cancelled"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl<E> From<Result<bool, E>> for Outcome {
    /// From whether the request was denied.
    fn from(denied: Result<bool, E>) -> Self {
        match denied {
            Ok(true) => Self::OverLimit,
            Ok(false) => Self::Ok,
            Err(_) => Self::Error,
        }
    }
}

/// Why a request or descriptor has no limit.
#[derive(Clone, Copy)]
pub enum Unmatched {
    Domain,
    Rule,
    Policy,
}

impl Unmatched {
    pub const NAMES: [&str; 3] = ["domain", "rule", "policy"];
}

/// Why a connection or request was rejected before any protocol.
#[derive(Clone, Copy)]
pub enum Rejection {
    Malformed,
    TooLarge,
    Slow,
    Connections,
    Tls,
    /// All requests and replies together held too many bytes.
    Memory,
}

impl Rejection {
    pub const NAMES: [&str; 6] = ["malformed", "too_large", "slow", "connections", "tls", "memory"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// A label of at most [`MAX_LABEL`] bytes.
pub fn shortened(label: &str) -> Cow<'_, str> {
    if label.len() <= MAX_LABEL {
        return Cow::Borrowed(label);
    }
    let end = (0..=MAX_LABEL).rev().find(|at| label.is_char_boundary(*at)).unwrap_or_default();
    Cow::Owned(format!("{}…", &label[..end]))
}
