//! One file a command, each read top to bottom: parse, open, decide, count, replicate, notify, reply.

mod acquire;
mod admit;
mod allow;
mod block;
mod budget;
mod hold;
mod holders;
mod holding;
mod info;
mod mallow;
mod peek;
mod record;
mod refund;
mod release;
mod renew;
mod request;
mod settle;
mod top;
mod unblock;

pub use acquire::Acquire;
pub use admit::Admit;
pub use allow::Allow;
pub use block::Block;
pub use budget::Budget;
pub use hold::Hold;
pub use holders::Holders;
pub use info::Info;
pub use mallow::Mallow;
pub use peek::Peek;
pub use record::Record;
pub use refund::Refund;
pub use release::Release;
pub use renew::Renew;
pub use settle::Settle;
pub use top::Top;
pub use unblock::Unblock;
