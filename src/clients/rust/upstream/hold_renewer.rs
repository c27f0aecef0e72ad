//! The renewer of holds: one task of a client that renews all its holds, releases those that are left, and settles admissions.
//!
//! All of a key's holds go into one RENEW every third of their time to live, and every tenth until it is answered,
//! whatever the breaker says: nobody waits for it, and there is nothing to decide in its place.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{join_all, BoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender, WeakUnboundedSender};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep_until, Instant};

use super::asking::Upstream;
use super::breaker::FIRST_PAUSE;
use super::exchange::Settled;
use super::moment::Moment;
use crate::clock::ms;
use crate::error::Error;
use crate::protocol::{Bytes, Command};
use crate::statistics::Count;
use crate::transport::Reply;

/// A hold is renewed so often in its time to live; whatever is repeated for it, so often.
pub(super) const RENEWALS: u32 = 3;
pub(super) const RETRIES: u32 = 10;
/// Clocks may drift by one part in so many.
pub(super) const DRIFT: u32 = 1000;
/// The most ids of one command.
pub(super) const MOST_IDS: usize = 1000;

/// 16 random bytes, or what the caller chose.
pub(crate) type Id = Bytes;

/// Which hold: the key's name on the server, the id, and the time to live.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldName {
    pub key: Bytes,
    pub id: Id,
    pub ttl: Duration,
}

impl HoldName {
    pub fn release(&self) -> Command {
        Command::Release { key: Arc::clone(&self.key), ids: vec![Arc::clone(&self.id)] }
    }

    pub fn renew(&self) -> Command {
        Command::Renew { key: Arc::clone(&self.key), ttl: ms(self.ttl), ids: vec![Arc::clone(&self.id)] }
    }
}

/// Until when a hold is live, and whether it was lost: what the guard and the renewer share.
pub(crate) struct Lifetime {
    until: Mutex<Moment>,
    lost: watch::Sender<bool>,
}

impl Lifetime {
    /// The lifetime of a hold that was granted, or renewed, by a command sent at that moment.
    pub fn new(sent: Moment, ttl: Duration) -> Self {
        Self { until: Mutex::new(over(sent, ttl)), lost: watch::Sender::new(false) }
    }

    /// Whether its holder may go on: compares the clocks.
    pub fn is_live(&self) -> bool {
        !*self.lost.borrow() && !self.until.lock().has_come()
    }

    /// Tells whether it is lost.
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.lost.subscribe()
    }

    fn until(&self) -> Instant {
        self.until.lock().instant
    }

    /// It was renewed by what was sent at a moment. One that was lost already stays lost.
    fn renewed(&self, sent: Moment, ttl: Duration) {
        let mut until = self.until.lock();
        let renewed = over(sent, ttl);
        if !until.has_come() && renewed.instant > until.instant {
            *until = renewed;
        }
    }

    /// Whether this was new.
    fn lose(&self) -> bool {
        !self.lost.send_replace(true)
    }
}

/// When a hold is over for its holder, whatever the server says later. The thousandth is for clocks that drift.
fn over(sent: Moment, ttl: Duration) -> Moment {
    sent.after(ttl - ttl / DRIFT)
}

/// The handle of the renewing task. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HoldRenewer {
    upstream: Arc<Upstream>,
    inbox: Arc<OnceLock<UnboundedSender<Message>>>,
}

enum Message {
    /// Renew it from now on.
    Keep(HoldName, Arc<Lifetime>, Instant),
    /// Renew it no more: its holder releases it.
    Forget(HoldName),
    /// Release it until that is answered, or it has ended.
    Release(HoldName),
    /// Settle it, renewed meanwhile, until that is answered or it has ended.
    Settle(Settlement),
    /// The reply to a RENEW that came late.
    Renewed(Renewal),
    /// Answer when nothing is left to release or settle.
    WhenSettled(oneshot::Sender<()>),
}

/// A correction of what a hold has reserved.
pub(crate) struct Settlement {
    pub name: HoldName,
    pub command: Command,
    /// What was used beyond, to be recorded where the hold had ended before.
    pub beyond: Vec<Command>,
    /// Further holds, which end with it: they are renewed no more.
    pub holds: Vec<HoldName>,
    /// Hears what was changed; `None` where the hold had ended.
    pub done: oneshot::Sender<Result<Option<Vec<i64>>, Error>>,
}

impl HoldRenewer {
    pub fn new(upstream: &Arc<Upstream>) -> Self {
        Self { upstream: Arc::clone(upstream), inbox: Arc::default() }
    }

    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.upstream
    }

    /// Renews a hold that was granted or renewed by what was sent at a moment, until it is released or lost.
    pub fn keep(&self, name: HoldName, sent: Moment) -> Arc<Lifetime> {
        let life = Arc::new(Lifetime::new(sent, name.ttl));
        let due = sent.instant + name.ttl / RENEWALS;
        self.tell(Message::Keep(name, Arc::clone(&life), due));
        life
    }

    /// Renews a hold no more.
    pub fn forget(&self, name: HoldName) {
        self.tell(Message::Forget(name));
    }

    /// Releases a hold. Nobody has to wait for it.
    pub fn release(&self, name: HoldName) {
        self.tell(Message::Release(name));
    }

    /// Settles what a hold has reserved, and ends it. Nobody has to wait for it.
    pub fn settle(&self, settlement: Settlement) {
        self.tell(Message::Settle(settlement));
    }

    /// Waits until nothing is left to release or settle.
    pub async fn settled(&self) {
        if self.inbox.get().is_none() {
            return;
        }
        let (done, settled) = oneshot::channel();
        self.tell(Message::WhenSettled(done));
        let _ = settled.await;
    }

    /// Begins the task, unless it runs. It ends when the client and all holds are gone.
    fn tell(&self, message: Message) {
        let inbox = self.inbox.get_or_init(|| {
            let (sender, inbox) = unbounded_channel();
            let task = Task::new(&self.upstream, sender.downgrade());
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(task.run(inbox))),
                Err(_) => drop(inbox), // the runtime has ended, and the server ends what is held
            }
            sender
        });
        let _ = inbox.send(message);
    }
}

/// Holds of a key with one time to live.
type Group = (Arc<[u8]>, Duration);

struct Task {
    upstream: Arc<Upstream>,
    /// For replies that come late.
    inbox: WeakUnboundedSender<Message>,
    groups: HashMap<Group, HashMap<Id, Kept>>,
    /// When to look at a group next: not later than its first hold is due, or over.
    due: BTreeSet<(Instant, Group)>,
    next: HashMap<Group, Instant>,
    exchanges: FuturesUnordered<BoxFuture<'static, Done>>,
    /// How many of the exchanges release or settle.
    owed: usize,
    waiting: Vec<oneshot::Sender<()>>,
}

struct Kept {
    life: Arc<Lifetime>,
    /// When to renew it.
    due: Instant,
}

/// What came of a RENEW.
struct Renewal {
    group: Group,
    ids: Vec<Id>,
    sent: Moment,
    reply: Result<Reply, Error>,
}

enum Done {
    Renewed(Renewal),
    Released,
    Settled(HoldName),
}

impl Task {
    fn new(upstream: &Arc<Upstream>, inbox: WeakUnboundedSender<Message>) -> Self {
        Self {
            upstream: Arc::clone(upstream),
            inbox,
            groups: HashMap::new(),
            due: BTreeSet::new(),
            next: HashMap::new(),
            exchanges: FuturesUnordered::new(),
            owed: 0,
            waiting: Vec::new(),
        }
    }

    async fn run(mut self, mut inbox: UnboundedReceiver<Message>) {
        let (mut is_open, mut messages) = (true, Vec::new());
        while is_open || !self.exchanges.is_empty() {
            let next = self.due.first().map(|(instant, _)| *instant);
            tokio::select! {
                biased;
                count = inbox.recv_many(&mut messages, MOST_IDS), if is_open => {
                    is_open = count > 0;
                    self.read(&mut messages);
                }
                Some(done) = self.exchanges.next(), if !self.exchanges.is_empty() => self.done(done),
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => self.look(),
            }
            if self.owed == 0 {
                self.waiting.drain(..).for_each(|waiting| {
                    let _ = waiting.send(());
                });
            }
        }
    }

    fn read(&mut self, messages: &mut Vec<Message>) {
        let mut released: HashMap<Group, Vec<Id>> = HashMap::new();
        for message in messages.drain(..) {
            match message {
                Message::Keep(HoldName { key, id, ttl }, life, due) => {
                    let group = (key, ttl);
                    self.look_at(&group, due);
                    self.groups.entry(group).or_default().insert(id, Kept { life, due });
                }
                Message::Forget(name) => self.forget(&name),
                Message::Release(name) => {
                    self.forget(&name);
                    released.entry((name.key, name.ttl)).or_default().push(name.id);
                }
                Message::Settle(settlement) => {
                    settlement.holds.iter().for_each(|hold| self.forget(hold));
                    self.owed += 1;
                    self.exchanges.push(Box::pin(settle(Arc::clone(&self.upstream), settlement)));
                }
                Message::Renewed(renewal) => self.renewed(renewal),
                Message::WhenSettled(done) => self.waiting.push(done),
            }
        }
        for (group, ids) in released {
            for ids in ids.chunks(MOST_IDS) {
                self.owed += 1;
                self.exchanges.push(Box::pin(release(Arc::clone(&self.upstream), group.clone(), ids.to_vec())));
            }
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Renewed(renewal) => return self.renewed(renewal),
            Done::Released => {}
            Done::Settled(name) => self.forget(&name),
        }
        self.owed -= 1;
    }

    fn forget(&mut self, name: &HoldName) {
        let group = (Arc::clone(&name.key), name.ttl);
        if let Some(holds) = self.groups.get_mut(&group) {
            holds.remove(&name.id);
            if holds.is_empty() {
                self.look_no_more_at(&group);
            }
        }
    }

    /// Looks at a group at an instant, unless a look before that is planned.
    fn look_at(&mut self, group: &Group, instant: Instant) {
        match self.next.get(group) {
            Some(next) if *next <= instant => return,
            Some(next) => drop(self.due.remove(&(*next, group.clone()))),
            None => {}
        }
        self.next.insert(group.clone(), instant);
        self.due.insert((instant, group.clone()));
    }

    fn look_no_more_at(&mut self, group: &Group) {
        self.groups.remove(group);
        if let Some(next) = self.next.remove(group) {
            self.due.remove(&(next, group.clone()));
        }
    }

    /// Renews what is due, and says what is over.
    fn look(&mut self) {
        let now = Instant::now();
        while let Some((_, group)) = self.due.first().filter(|(instant, _)| *instant <= now).cloned() {
            if let Some(next) = self.next.remove(&group) {
                self.due.remove(&(next, group.clone()));
            }
            self.look_into(group, now);
        }
    }

    fn look_into(&mut self, group: Group, now: Instant) {
        let Some(holds) = self.groups.get_mut(&group) else { return };
        let mut lost = 0;
        holds.retain(|_, hold| {
            let is_over = !hold.life.is_live();
            lost += u64::from(is_over && hold.life.lose());
            !is_over
        });
        self.upstream.count(Count::HoldsLost, lost);
        let is_due = holds.values().any(|hold| hold.due <= now);
        let ids: Vec<Id> = if is_due { holds.keys().cloned().collect() } else { Vec::new() };
        if is_due {
            let again = now + group.1 / RETRIES;
            holds.values_mut().for_each(|hold| hold.due = again);
        }
        let next = holds.values().map(|hold| hold.due.min(hold.life.until())).min();
        match next {
            Some(next) => self.look_at(&group, next),
            None => self.look_no_more_at(&group),
        }
        for ids in ids.chunks(MOST_IDS) {
            self.exchanges.push(Box::pin(renew(
                Arc::clone(&self.upstream),
                self.inbox.clone(),
                group.clone(),
                ids.to_vec(),
            )));
        }
    }

    /// Each that the server has renewed goes on; each that it has not is lost.
    fn renewed(&mut self, renewal: Renewal) {
        let Renewal { group, ids, sent, reply: Ok(Reply::Array(replies)) } = renewal else { return };
        let Some(holds) = self.groups.get_mut(&group) else { return };
        let mut lost = 0;
        for (id, reply) in ids.iter().zip(&replies) {
            let Some(hold) = holds.get_mut(id) else { continue };
            if reply.natural() == Ok(1) {
                hold.life.renewed(sent, group.1);
                hold.due = hold.due.max(sent.instant + group.1 / RENEWALS);
            } else {
                lost += u64::from(hold.life.lose());
                holds.remove(id);
            }
        }
        self.upstream.count(Count::HoldsLost, lost);
        if holds.is_empty() {
            self.look_no_more_at(&group);
        }
    }
}

/// Renews holds of a key once. A reply that comes later becomes a message.
async fn renew(upstream: Arc<Upstream>, inbox: WeakUnboundedSender<Message>, group: Group, ids: Vec<Id>) -> Done {
    let sent = Moment::now();
    let command = Command::Renew { key: Arc::clone(&group.0), ttl: ms(group.1), ids: ids.clone() };
    let late = {
        let (upstream, group, ids) = (Arc::clone(&upstream), group.clone(), ids.clone());
        Box::new(move |settled: Settled| {
            let reply = upstream.understood(settled.reply, &group.0);
            if let Some(inbox) = inbox.upgrade() {
                let _ = inbox.send(Message::Renewed(Renewal { group, ids, sent, reply }));
            }
        })
    };
    let reply = upstream.insist(command, sent.instant + group.1 / RETRIES, Some(late)).await;
    Done::Renewed(Renewal { group, ids, sent, reply })
}

/// Releases holds of a key, again and again until that is answered, or they have ended.
async fn release(upstream: Arc<Upstream>, group: Group, ids: Vec<Id>) -> Done {
    let (key, ttl) = group;
    let _ = until_answered(&upstream, &Command::Release { key, ids }, ttl, Instant::now() + ttl).await;
    Done::Released
}

/// Settles an admission, again and again until that is answered, or its hold would have ended.
async fn settle(upstream: Arc<Upstream>, settlement: Settlement) -> Done {
    let Settlement { name, command, beyond, holds, done } = settlement;
    let (reply, tries) = until_answered(&upstream, &command, name.ttl, Instant::now() + name.ttl).await;
    let settled = match reply.and_then(|reply| reply.changes()) {
        // Tried once, it was not this that has ended the hold before.
        Ok(None) if tries == 1 => {
            for command in beyond {
                // Asked once: what is recorded twice counts twice.
                let _ = upstream.insist(command, Instant::now() + name.ttl / RETRIES, None).await;
            }
            Ok(None)
        }
        settled => settled,
    };
    // Settled, they have ended with it; and of themselves where that took a time to live.
    let have_ended = matches!(settled, Ok(Some(_)) | Err(Error::Unavailable(_)));
    let _ = done.send(settled);
    let left = holds.into_iter().filter(|_| !have_ended);
    join_all(left.map(|HoldName { key, id, ttl }| release(Arc::clone(&upstream), (key, ttl), vec![id]))).await;
    Done::Settled(name)
}

/// Asks at intervals that double up to a tenth of a time to live, and when a server is back, until an instant; the answer,
/// and how often it was asked.
async fn until_answered(
    upstream: &Upstream,
    command: &Command,
    ttl: Duration,
    until: Instant,
) -> (Result<Reply, Error>, u32) {
    let mut tries = 0;
    loop {
        let pause = FIRST_PAUSE * 2_u32.saturating_pow(tries);
        let (last, is_back) = (Instant::now() + ttl / RETRIES, upstream.is_back());
        let asking = async {
            match upstream.insist(command.clone(), last, None).await {
                Err(Error::Unavailable(_)) if last < until => {
                    sleep_until(last.min(Instant::now() + pause)).await;
                    None
                }
                reply => Some(reply),
            }
        };
        tries += 1;
        let reply = tokio::select! {
            biased;
            reply = asking => reply,
            () = is_back => None, // what was sent before may be silent for long
        };
        if let Some(reply) = reply {
            return (reply, tries);
        }
    }
}
