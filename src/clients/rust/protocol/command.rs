//! The commands, typed. Their words exist only where they are written to a socket.

use std::sync::Arc;

use swlimit_window::{Decision, Quota, Request, WarmUp};

use crate::demand::Demand;
use crate::transport::{Reply, Words};

/// So begin the names of the module's commands.
pub(crate) const PREFIX: &str = "SWLIMIT.";

/// A key or an id: cheap to clone.
pub(crate) type Bytes = Arc<[u8]>;

/// One of the module's commands, or of the server's own. Durations are in ms, instants in Unix ms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Allow {
        key: Bytes,
        demand: Demand,
    },
    Peek {
        key: Bytes,
        demand: Demand,
    },
    Record {
        key: Bytes,
        demand: Demand,
        age: u64,
    },
    Acquire {
        key: Bytes,
        demand: Demand,
        timeout: u64,
    },
    Refund {
        key: Bytes,
        units: u64,
        counted: Counted,
    },
    Block {
        key: Bytes,
        duration: u64,
        unless_blocked: bool,
    },
    Unblock {
        key: Bytes,
    },
    Info {
        key: Bytes,
    },
    Mallow {
        members: Vec<(Bytes, Demand)>,
        strict: bool,
    },
    Hold {
        key: Bytes,
        hold: HoldClause,
        wait: Option<u64>,
    },
    Renew {
        key: Bytes,
        ttl: u64,
        ids: Vec<Bytes>,
    },
    Release {
        key: Bytes,
        ids: Vec<Bytes>,
    },
    Holders {
        key: Bytes,
        count: u64,
    },
    Budget {
        key: Bytes,
        budget: BudgetClause,
        partial: bool,
        force: bool,
    },
    Admit {
        members: Vec<(Bytes, Clause)>,
        strict: bool,
    },
    Settle {
        key: Bytes,
        id: Bytes,
        reserved: Vec<(Bytes, u64)>,
    },
    Top {
        count: u64,
    },
    /// One of the server's own, word by word; [`KEY`] stands for the key.
    Server {
        words: &'static [&'static str],
        key: Option<Bytes>,
    },
}

/// Stands for the key among the words of a [`Command::Server`].
pub(crate) const KEY: &str = "{key}";

/// Which units a refund gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The youngest.
    Last,
    /// Those of an age.
    Ago(u64),
    /// Those that count since an instant of the server's clock.
    Since(u64),
}

impl Counted {
    pub fn of(since: Option<u64>, age: Option<u64>) -> Self {
        since.map(Self::Since).or_else(|| age.map(Self::Ago)).unwrap_or(Self::Last)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldClause {
    pub limit: u64,
    pub ttl: u64,
    pub id: Bytes,
    pub cost: u64,
    /// The id was drawn for this command alone. What an id that its caller chose is granted belongs to the caller,
    /// whose next try, or other process, may know of it by now.
    pub own_id: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetClause {
    pub limit: u64,
    /// The end of the period.
    pub until: u64,
    pub cost: u64,
}

/// One of several decisions in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clause {
    Rate(Demand),
    Hold(HoldClause),
    Budget(BudgetClause),
}

impl Command {
    /// Says that a cluster's node may answer the next command for a slot that is on its way to it.
    pub const ASKING: Self = Self::server(&["ASKING"]);
    pub const TIME: Self = Self::server(&["TIME"]);

    /// One of the server's own, without a key.
    pub const fn server(words: &'static [&'static str]) -> Self {
        Self::Server { words, key: None }
    }

    pub fn allow(key: &[u8], demand: &Demand) -> Self {
        Self::Allow { key: key.into(), demand: *demand }
    }

    pub fn peek(key: &[u8], demand: &Demand) -> Self {
        Self::Peek { key: key.into(), demand: *demand }
    }

    pub fn record(key: &[u8], demand: &Demand, age: u64) -> Self {
        Self::Record { key: key.into(), demand: *demand, age }
    }

    pub fn acquire(key: &[u8], demand: &Demand, timeout: u64) -> Self {
        Self::Acquire { key: key.into(), demand: *demand, timeout }
    }

    pub fn refund(key: &[u8], units: u64, counted: Counted) -> Self {
        Self::Refund { key: key.into(), units, counted }
    }

    pub fn info(key: &[u8]) -> Self {
        Self::Info { key: key.into() }
    }

    /// Deletes a key, whatever it holds.
    pub fn delete(key: &[u8]) -> Self {
        Self::Server { words: &["DEL", KEY], key: Some(key.into()) }
    }

    pub fn pttl(key: &[u8]) -> Self {
        Self::Server { words: &["PTTL", KEY], key: Some(key.into()) }
    }

    /// A write that changes nothing, of servers on which the script decides.
    pub fn empty_write(key: &[u8]) -> Self {
        Self::Server { words: &["SETRANGE", KEY, "0", ""], key: Some(key.into()) }
    }

    /// The name of a PEEK alone: a server that knows the module refuses it, and counts nothing.
    pub const PEEK_BY_NAME: Self = Self::server(&["SWLIMIT.PEEK"]);

    /// The name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allow { .. } => "SWLIMIT.ALLOW",
            Self::Peek { .. } => "SWLIMIT.PEEK",
            Self::Record { .. } => "SWLIMIT.RECORD",
            Self::Acquire { .. } => "SWLIMIT.ACQUIRE",
            Self::Refund { .. } => "SWLIMIT.REFUND",
            Self::Block { .. } => "SWLIMIT.BLOCK",
            Self::Unblock { .. } => "SWLIMIT.UNBLOCK",
            Self::Info { .. } => "SWLIMIT.INFO",
            Self::Mallow { .. } => "SWLIMIT.MALLOW",
            Self::Hold { .. } => "SWLIMIT.HOLD",
            Self::Renew { .. } => "SWLIMIT.RENEW",
            Self::Release { .. } => "SWLIMIT.RELEASE",
            Self::Holders { .. } => "SWLIMIT.HOLDERS",
            Self::Budget { .. } => "SWLIMIT.BUDGET",
            Self::Admit { .. } => "SWLIMIT.ADMIT",
            Self::Settle { .. } => "SWLIMIT.SETTLE",
            Self::Top { .. } => "SWLIMIT.TOP",
            Self::Server { words, .. } => words.first().copied().unwrap_or_default(),
        }
    }

    /// The key by which a cluster finds the node, if there is one.
    pub fn key(&self) -> Option<&[u8]> {
        self.keys().next()
    }

    /// The keys, in the order in which they are written.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..).map_while(|at| self.key_at(at).map(|key| &**key))
    }

    fn key_at(&self, at: usize) -> Option<&Bytes> {
        match (self, at) {
            (Self::Mallow { members, .. }, _) => members.get(at).map(|(key, _)| key),
            (Self::Admit { members, .. }, _) => members.get(at).map(|(key, _)| key),
            (Self::Settle { reserved, .. }, 1..) => reserved.get(at - 1).map(|(key, _)| key),
            (Self::Server { key, .. }, 0) => key.as_ref(),
            (
                Self::Allow { key, .. }
                | Self::Peek { key, .. }
                | Self::Record { key, .. }
                | Self::Acquire { key, .. }
                | Self::Refund { key, .. }
                | Self::Block { key, .. }
                | Self::Unblock { key }
                | Self::Info { key }
                | Self::Hold { key, .. }
                | Self::Renew { key, .. }
                | Self::Release { key, .. }
                | Self::Holders { key, .. }
                | Self::Budget { key, .. }
                | Self::Settle { key, .. },
                0,
            ) => Some(key),
            _ => None,
        }
    }

    /// How many keys there are, of a command that says so before them.
    pub fn counted_keys(&self) -> Option<usize> {
        match self {
            Self::Mallow { members, .. } => Some(members.len()),
            Self::Admit { members, .. } => Some(members.len()),
            Self::Settle { reserved, .. } => Some(1 + reserved.len()),
            _ => None,
        }
    }

    /// Whether it reads only, of the module's commands.
    pub fn reads(&self) -> bool {
        matches!(self, Self::Peek { .. } | Self::Info { .. } | Self::Holders { .. } | Self::Top { .. })
    }

    /// Whether a server that refuses writes, for whatever reason, refuses this.
    pub fn is_refused_with_writes(&self) -> bool {
        matches!(
            self,
            Self::Allow { .. }
                | Self::Mallow { .. }
                | Self::Acquire { .. }
                | Self::Admit { .. }
                | Self::Record { .. }
                | Self::Block { .. }
                | Self::Hold { .. }
                | Self::Budget { .. }
        )
    }

    /// Whether it asks for limits that rise, which the first modules have not.
    pub fn warms_up(&self) -> bool {
        let warms_up = |demand: &Demand| demand.exact.warm_up.is_some();
        match self {
            Self::Allow { demand, .. }
            | Self::Peek { demand, .. }
            | Self::Record { demand, .. }
            | Self::Acquire { demand, .. } => warms_up(demand),
            Self::Mallow { members, .. } => members.iter().any(|(_, demand)| warms_up(demand)),
            Self::Admit { members, .. } => {
                members.iter().any(|(_, clause)| matches!(clause, Clause::Rate(demand) if warms_up(demand)))
            }
            _ => false,
        }
    }

    /// Units that this reply granted.
    pub fn granted(&self, reply: &Reply) -> u64 {
        match self {
            Self::Allow { .. } | Self::Acquire { .. } | Self::Budget { .. } => {
                reply.decision().map_or(0, |decision| decision.granted)
            }
            Self::Mallow { .. } => match reply.decisions() {
                Ok((true, each)) => each.iter().map(|decision| decision.granted).sum(),
                _ => 0,
            },
            _ => 0,
        }
    }

    /// What makes the command equal to what its caller got without its reply: gives back the units beyond `told`,
    /// counted since an instant of the server's clock. Of several limits, any unit stands for all.
    pub fn undo(&self, reply: Option<&Reply>, since: u64, told: u64) -> Vec<Self> {
        let undone = |key: &Bytes, reply: &Reply, is_budget: bool| {
            let Decision { granted, reset_after, .. } = reply.decision().ok()?;
            let units = granted.checked_sub(told).filter(|units| *units > 0)?;
            // A period began with its first unit, perhaps after `since`. This instant is surely before its end.
            let in_period = since.saturating_add(reset_after).saturating_sub(1);
            let counted = Counted::Since(if is_budget { in_period } else { since });
            Some(Self::Refund { key: Arc::clone(key), units, counted })
        };
        let one = |undone: Option<Self>| undone.into_iter().collect();
        match self {
            Self::Mallow { members, .. } if told == 0 => {
                let Some(Ok((true, replies))) = reply.map(Reply::clauses) else { return Vec::new() };
                let each = members.iter().zip(replies);
                each.filter_map(|((key, _), reply)| undone(key, reply, false)).collect()
            }
            Self::Allow { key, .. } | Self::Acquire { key, .. } => {
                one(reply.and_then(|reply| undone(key, reply, false)))
            }
            Self::Budget { key, force: false, .. } => one(reply.and_then(|reply| undone(key, reply, true))),
            Self::Hold { key, hold, .. } if hold.own_id => {
                let may_be_held = reply.is_none_or(|reply| reply.hold().is_ok_and(|held| held.granted > 0));
                one(may_be_held.then(|| Self::Release { key: Arc::clone(key), ids: vec![Arc::clone(&hold.id)] }))
            }
            Self::Admit { members, .. } if told == 0 => {
                if let Some((key, hold)) = self.admitted_hold() {
                    let may_be_held = reply.is_none_or(|reply| reply.clauses().is_ok_and(|(granted, _)| granted));
                    return one((hold.own_id && may_be_held).then(|| self.settled_unused(key, hold)));
                }
                let Some(Ok((true, replies))) = reply.map(Reply::clauses) else { return Vec::new() };
                let each = members.iter().zip(replies);
                let undone = each.map(|((key, clause), reply)| undone(key, reply, matches!(clause, Clause::Budget(_))));
                undone.flatten().collect()
            }
            _ => Vec::new(),
        }
    }

    /// The hold among the clauses of an ADMIT.
    pub fn admitted_hold(&self) -> Option<(&Bytes, &HoldClause)> {
        let Self::Admit { members, .. } = self else { return None };
        members.iter().find_map(|(key, clause)| match clause {
            Clause::Hold(hold) => Some((key, hold)),
            _ => None,
        })
    }

    /// Ends this hold of an ADMIT, and gives back all that it has reserved.
    fn settled_unused(&self, key: &Bytes, hold: &HoldClause) -> Self {
        let others = self.keys().filter(|other| **other != **key).map(|other| (other.into(), 0));
        Self::Settle { key: Arc::clone(key), id: Arc::clone(&hold.id), reserved: others.collect() }
    }

    /// Writes what follows the keys.
    pub fn write_options(&self, to: &mut Writer<'_>) {
        match self {
            Self::Allow { demand, .. } => {
                to.rate(demand).duration("BLOCK", demand.block);
            }
            Self::Peek { demand, .. } => {
                to.rate(demand);
            }
            Self::Record { demand, age, .. } => {
                to.quota(&demand.exact.quota).cost(demand.exact.cost).option("STRICT", demand.exact.strict);
                to.duration("AGE", Some(*age).filter(|age| *age > 0));
                to.warm_up(demand.exact.warm_up).duration("BLOCK", demand.block);
            }
            Self::Acquire { demand, timeout, .. } => {
                to.quota(&demand.exact.quota).ms(*timeout).cost(demand.exact.cost);
                to.option("STRICT", demand.exact.strict).warm_up(demand.exact.warm_up);
            }
            Self::Refund { units, counted, .. } => {
                to.number(*units);
                match counted {
                    Counted::Last => {}
                    Counted::Ago(age) => {
                        to.duration("AGE", Some(*age));
                    }
                    Counted::Since(instant) => {
                        to.text("SINCE").number(*instant);
                    }
                }
            }
            Self::Block { duration, unless_blocked, .. } => {
                to.ms(*duration).option("NX", *unless_blocked);
            }
            Self::Unblock { .. } | Self::Info { .. } => {}
            Self::Mallow { members, strict } => {
                for (_, demand) in members {
                    to.member(demand);
                }
                to.option("STRICT", *strict);
            }
            Self::Hold { hold, wait, .. } => {
                to.hold(hold).duration("WAIT", *wait);
            }
            Self::Renew { ttl, ids, .. } => {
                to.ms(*ttl).words(ids);
            }
            Self::Release { ids, .. } => {
                to.words(ids);
            }
            Self::Holders { count, .. } | Self::Top { count } => {
                to.number(*count);
            }
            Self::Budget { budget, partial, force, .. } => {
                to.number(budget.limit).number(budget.until).cost(budget.cost);
                to.option("PARTIAL", *partial).option("FORCE", *force);
            }
            Self::Admit { members, strict } => {
                for (_, clause) in members {
                    match clause {
                        Clause::Rate(demand) => {
                            to.text("RATE").member(demand);
                        }
                        Clause::Hold(hold) => {
                            to.text("HOLD").number(hold.limit).ms(hold.ttl).word(&hold.id).number(hold.cost);
                        }
                        Clause::Budget(budget) => {
                            to.text("BUDGET").number(budget.limit).number(budget.until).number(budget.cost);
                        }
                    }
                }
                to.option("STRICT", *strict);
            }
            Self::Settle { id, reserved, .. } => {
                to.word(id);
                for (_, used) in reserved {
                    to.number(*used);
                }
            }
            // Its words are written in their order, the key among them.
            Self::Server { words, key } => {
                for word in words.iter().skip(1) {
                    to.word(if *word == KEY { key.as_deref().unwrap_or_default() } else { word.as_bytes() });
                }
            }
        }
    }
}

impl Words for Command {
    fn each(&self, word: &mut dyn FnMut(&[u8])) {
        let mut to = Writer(word);
        to.text(self.name());
        if !matches!(self, Self::Server { .. }) {
            if let Some(count) = self.counted_keys() {
                to.number(count as u64);
            }
            self.keys().for_each(|key| (to.0)(key));
        }
        self.write_options(&mut to);
    }
}

/// Writes words as the module reads them.
pub(crate) struct Writer<'a>(pub &'a mut dyn FnMut(&[u8]));

impl Writer<'_> {
    pub fn word(&mut self, word: &[u8]) -> &mut Self {
        (self.0)(word);
        self
    }

    pub fn text(&mut self, word: &str) -> &mut Self {
        self.word(word.as_bytes())
    }

    pub fn number(&mut self, number: u64) -> &mut Self {
        self.text(itoa::Buffer::new().format(number))
    }

    fn ms(&mut self, ms: u64) -> &mut Self {
        let (mut digits, mut word) = (itoa::Buffer::new(), [b'm'; 22]);
        let digits = digits.format(ms).as_bytes();
        let end = digits.len() + 2;
        word[..digits.len()].copy_from_slice(digits);
        word[end - 1] = b's';
        self.word(&word[..end])
    }

    fn words(&mut self, words: &[Bytes]) -> &mut Self {
        words.iter().for_each(|word| (self.0)(word));
        self
    }

    fn option(&mut self, name: &str, is_set: bool) -> &mut Self {
        if is_set {
            self.text(name);
        }
        self
    }

    fn duration(&mut self, name: &str, ms: Option<u64>) -> &mut Self {
        match ms {
            Some(ms) => self.text(name).ms(ms),
            None => self,
        }
    }

    fn quota(&mut self, quota: &Quota) -> &mut Self {
        self.number(quota.limit).ms(quota.geometry.window()).ms(quota.geometry.resolution())
    }

    fn cost(&mut self, cost: u64) -> &mut Self {
        match cost {
            1 => self,
            cost => self.text("COST").number(cost),
        }
    }

    pub fn hold(&mut self, hold: &HoldClause) -> &mut Self {
        self.number(hold.limit).ms(hold.ttl).word(&hold.id).cost(hold.cost)
    }

    /// A request that is decided alone.
    fn rate(&mut self, demand: &Demand) -> &mut Self {
        let Request { quota, cost, partial, strict, warm_up } = &demand.exact;
        self.quota(quota).cost(*cost).option("PARTIAL", *partial).option("STRICT", *strict).warm_up(*warm_up)
    }

    /// One of several, which are all strict, or none of them is.
    fn member(&mut self, demand: &Demand) -> &mut Self {
        let Request { quota, cost, warm_up, .. } = &demand.exact;
        self.quota(quota).number(*cost).warm_up(*warm_up)
    }

    fn warm_up(&mut self, warm_up: Option<WarmUp>) -> &mut Self {
        self.duration("WARMUP", warm_up.map(WarmUp::duration));
        match warm_up.map(WarmUp::cold) {
            None | Some(WarmUp::COLD) => self,
            Some(parts) => self.text("COLD").number(parts),
        }
    }
}
