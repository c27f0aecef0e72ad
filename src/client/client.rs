//! The client: a line to the server, and what all limiters share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::background::Background;
use crate::commands;
use crate::decision::{Decision, Decisions, Way};
use crate::demand::Demand;
use crate::denials::Denials;
use crate::error::Error;
use crate::leases::Leases;
use crate::limiter::{Limiter, LimiterBuilder};
use crate::operating::{Denied, Held};
use crate::quota::Quota;
use crate::request::Request;
use crate::server::Server;
use crate::statistics::{Count, Counters, Statistics};
use crate::turns::Turns;
use crate::wire::{Command, Listener, Reply, Servers, Wire};

/// A line to a server, a master that sentinels name, or a cluster; or none. Cheap to clone.
///
/// It needs tokio's runtime, with time and I/O enabled, to be used and to be dropped.
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Shared>);

/// What all limiters of a client share.
pub(crate) struct Shared {
    pub server: Option<Arc<Server>>,
    pub denials: Arc<Denials>,
    /// How long a denial is remembered where nothing is heard of changes.
    pub untracked: Duration,
    pub turns: Turns,
    pub counters: Arc<Counters>,
    pub most_keys: usize,
    /// What is to be given back or told at the end.
    pub leases: Mutex<Vec<Weak<Leases>>>,
    pub backgrounds: Mutex<Vec<Weak<Background>>>,
}

/// How a client is to be.
#[derive(Clone, Debug)]
#[must_use = "nothing is built yet"]
pub struct ClientBuilder {
    timeout: Duration,
    untracked: Duration,
    most_keys: usize,
    most_waiting: usize,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(50),
            untracked: Duration::from_millis(100),
            most_keys: 100_000,
            most_waiting: 8,
        }
    }
}

impl ClientBuilder {
    /// How long a request waits because of the limiter, at most: 50 ms unless set. `acquire` waits its own time.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// How long a denial is remembered where the server cannot tell of changed keys, because there is no RESP3 or a
    /// proxy in between: 100 ms unless set. A refund is noticed that much later.
    pub fn untracked(self, longest: Duration) -> Self {
        Self { untracked: longest, ..self }
    }

    /// Of how many keys something is remembered at a time, by the client and by each limiter: 100 000 unless set. The
    /// oldest are forgotten first.
    pub fn most_keys(self, most: usize) -> Self {
        Self { most_keys: most, ..self }
    }

    /// How many requests wait on the server at a time, each over a connection of its own: 8 unless set. Others wait for
    /// them in the process.
    pub fn most_waiting(self, most: usize) -> Self {
        Self { most_waiting: most, ..self }
    }

    /// A client that connects when it is first used. Meanwhile its limiters decide by their failure policy.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a URL that cannot be read: see [`Client::connect`].
    pub fn build(self, url: &str) -> Result<Client, Error> {
        let servers = Servers::at(url).map_err(Error::Invalid)?;
        Ok(self.made(Some(Box::new(servers))))
    }

    /// The same client, once the server has answered.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the URL, [`Error::Away`] when nobody answers within a second, [`Error::ModuleMissing`]
    /// and [`Error::Refused`] when what answers is not what is needed.
    pub async fn connect(self, url: &str) -> Result<Client, Error> {
        let client = self.build(url)?;
        client.check().await?;
        Ok(client)
    }

    /// A client over a line that somebody else made, such as [`Given`](crate::wire::Given).
    pub fn over(self, line: impl Wire) -> Client {
        self.made(Some(Box::new(line)))
    }

    /// A client without a server: every limiter is one of [`Deciding::OnlyLocal`](crate::Deciding::OnlyLocal).
    pub fn only_local(self) -> Client {
        self.made(None)
    }

    fn made(self, line: Option<Box<dyn Wire>>) -> Client {
        let counters = Arc::new(Counters::new());
        let denials = Arc::new(Denials::new(self.most_keys));
        let server = line.map(|wire| {
            wire.tell(Arc::new(Ears { denials: Arc::clone(&denials), counters: Arc::clone(&counters) }));
            Arc::new(Server::new(wire, Arc::clone(&counters), self.timeout, self.most_waiting))
        });
        Client(Arc::new(Shared {
            server,
            denials,
            untracked: self.untracked,
            turns: Turns::new(self.most_keys),
            counters,
            most_keys: self.most_keys,
            leases: Mutex::default(),
            backgrounds: Mutex::default(),
        }))
    }
}

/// Who hears of changed keys.
struct Ears {
    denials: Arc<Denials>,
    counters: Arc<Counters>,
}

impl Listener for Ears {
    fn changed(&self, key: &[u8]) {
        self.counters.count(Count::Changes, 1);
        self.denials.changed(key);
    }

    fn all_changed(&self) {
        self.counters.count(Count::Forgotten, 1);
        self.denials.all_changed();
    }
}

impl Client {
    /// A client of the server at a URL, once it has answered: `redis://`, with TLS `rediss://`, `unix://`, a cluster by
    /// some of its nodes `redis-cluster://a,b:7001`, a master by its sentinels `redis-sentinel://a,b/mymaster`; with
    /// `user:password@` before, and a `/database` behind.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// A client without a server.
    pub fn only_local() -> Self {
        Self::builder().only_local()
    }

    /// How a client is to be.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// A limiter of this quota, for any number of keys.
    pub fn limiter(&self, quota: Quota) -> LimiterBuilder {
        LimiterBuilder::new(self.clone(), quota)
    }

    /// Several limits in one decision: granted only if each of them is; otherwise nothing is counted anywhere. Each
    /// request is upon a limiter of this client; what its limiter does upon a denial by itself, a block, is not done.
    /// The server decides (`MALLOW`), unless one of them is known to be denied. In a cluster all keys need the same
    /// hash tag.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cost out of range, partial requests, a key named twice, or limiters of which only some
    /// are strict, or only some decided in this process; [`Error::Refused`] and [`Error::ModuleMissing`] as the server
    /// says.
    pub async fn allow_all(&self, requests: &[(&Limiter, Request<'_>)]) -> Result<Decisions, Error> {
        let members = self.members(requests)?;
        let decisions = self.decide_all(requests, &members).await?;
        for decision in decisions.each() {
            self.0.counters.decided(decision);
        }
        Ok(decisions)
    }

    fn members<'a>(&self, requests: &[(&Limiter, Request<'a>)]) -> Result<Vec<(&'a [u8], Demand)>, Error> {
        let invalid = |text: &str| Err(Error::Invalid(text.into()));
        let mut members: Vec<(&[u8], Demand)> = Vec::with_capacity(requests.len());
        for (limiter, request) in requests {
            let request = request.checked()?;
            if request.partial {
                return invalid("several limits at once grant the whole cost or nothing");
            }
            if members.iter().any(|(key, _)| *key == request.key) {
                return invalid("key named twice");
            }
            members.push((request.key, Demand { block: None, ..limiter.demand(&request) }));
        }
        match members.split_first() {
            None => invalid("several limits at once are at least one"),
            Some(((_, first), others)) if others.iter().any(|(_, other)| other.exact.strict != first.exact.strict) => {
                invalid("several limits at once are all strict, or none of them is")
            }
            Some(_) => Ok(members),
        }
    }

    async fn decide_all(
        &self,
        requests: &[(&Limiter, Request<'_>)],
        members: &[(&[u8], Demand)],
    ) -> Result<Decisions, Error> {
        let only_local = requests.iter().filter(|(limiter, _)| limiter.is_only_local()).count();
        if only_local == requests.len() {
            return Limiter::decide_all_away(requests, members);
        }
        if only_local > 0 {
            return Err(Error::Invalid(
                "several limits at once are all decided in this process, or none of them is".into(),
            ));
        }
        if let Some(each) = self.known_denials(members) {
            return Ok(Decisions { granted: false, each });
        }
        let sent = Instant::now();
        let server = self.0.server.as_ref().ok_or(Error::OnlyLocal("several limits at once"))?;
        let answer = server.ask(commands::mallow(members), server.deadline()).await;
        match answer.and_then(|reply| reply.decisions()) {
            Ok((granted, each)) => {
                for ((key, demand), decision) in members.iter().zip(&each) {
                    if decision.granted == 0 {
                        self.0.remember(key, demand, decision, sent);
                    }
                }
                let each = each.into_iter().map(|exact| Decision { exact, way: Way::Server }).collect();
                Ok(Decisions { granted, each })
            }
            Err(Error::Away(_)) => Limiter::decide_all_away(requests, members),
            Err(error) => Err(error),
        }
    }

    /// The decisions of requests of which one is known to be denied.
    fn known_denials(&self, members: &[(&[u8], Demand)]) -> Option<Vec<Decision>> {
        let now = Instant::now();
        let known: Vec<_> = members.iter().map(|(key, demand)| self.0.denials.find(key, demand, now)).collect();
        known.iter().any(Option::is_some).then(|| {
            let or_else = |(known, (_, demand)): (Option<_>, &(_, Demand))| {
                // Of the others nothing is known but that they were not asked.
                let exact = known.unwrap_or_else(|| demand.granted_unseen());
                Decision { exact, way: Way::Denial }
            };
            known.into_iter().zip(members).map(or_else).collect()
        })
    }

    /// Who is being limited: the keys with the most denied requests on the server, as `SWLIMIT.TOP` says. Of a cluster,
    /// of one of its nodes.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::OnlyLocal`].
    pub async fn top(&self, count: usize) -> Result<Vec<Denied>, Error> {
        let command = Command::named("SWLIMIT.TOP", usize::MAX).number(count as u64);
        Denied::all_of(&self.ask("top", command).await?)
    }

    /// What the server holds of a key, as `SWLIMIT.INFO` says; `None` of a key that it has not.
    ///
    /// # Errors
    /// [`Error::Away`], [`Error::Refused`], [`Error::ModuleMissing`], [`Error::OnlyLocal`].
    pub async fn info<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Result<Option<Held>, Error> {
        match self.ask("info", Command::on("SWLIMIT.INFO", key.as_ref())).await {
            Ok(reply) => Held::of(&reply).map(Some),
            Err(Error::Refused(text)) if text == "ERR no such key" => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn ask(&self, what: &'static str, command: Command) -> Result<Reply, Error> {
        let server = self.0.server.as_ref().ok_or(Error::OnlyLocal(what))?;
        server.ask(command, server.deadline()).await
    }

    /// Whether the server is believed to be there. Without a server, it is not.
    pub fn is_connected(&self) -> bool {
        self.0.server.as_ref().is_some_and(|server| server.is_there())
    }

    /// What this client has done so far.
    pub fn statistics(&self) -> Statistics {
        self.0.counters.sums()
    }

    /// Of how many keys a denial is remembered, or was until a moment ago.
    pub fn denials(&self) -> usize {
        self.0.denials.len()
    }

    /// Give back what leases have left, and tell the server what was counted in the background. Limiters go on, but
    /// whoever ends a process calls this last.
    pub async fn close(&self) {
        let leases: Vec<_> = self.0.leases.lock().iter().filter_map(Weak::upgrade).collect();
        for leases in leases {
            leases.close().await;
        }
        let backgrounds: Vec<_> = self.0.backgrounds.lock().iter().filter_map(Weak::upgrade).collect();
        for background in backgrounds {
            background.close().await;
        }
    }

    /// Whether the server is there and has what is needed. It is given more time than a request: it may have to be
    /// found.
    async fn check(&self) -> Result<(), Error> {
        let Some(server) = &self.0.server else { return Ok(()) };
        let demand = Demand::of(&Quota::new(1, "1m", "1m")?);
        let deadline = Instant::now() + Duration::from_secs(1).max(server.timeout());
        match server.ask(commands::peek(b"swlimit:connected", &demand), deadline).await {
            // Not every user may read every key.
            Err(Error::Refused(text)) if text.starts_with("NOPERM") => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }
}

impl Shared {
    /// Remember that the server denied something that it was asked at `sent`, for as long as that is certain.
    pub fn remember(self: &Arc<Self>, key: &[u8], demand: &Demand, denied: &swlimit_window::Decision, sent: Instant) {
        let Some(server) = self.server.clone() else { return };
        if denied.retry_after.is_none_or(|ms| ms <= SHORTEST) {
            return;
        }
        let Some(asking) = Denials::begin(&self.denials, key) else { return };
        let (command, demand, denied, untracked) = (commands::peek(key, demand), *demand, *denied, self.untracked);
        // Whoever was denied does not wait for this.
        tokio::spawn(async move {
            let asked = Instant::now();
            match server.ask_tracked(command, server.deadline()).await {
                Some(reply) => {
                    if let Ok(decision) = reply.and_then(|reply| reply.decision()) {
                        asking.answered(&demand, &decision, asked, None);
                    }
                }
                None => asking.answered(&demand, &denied, sent, Some(untracked)),
            }
        });
    }

    /// The server's denial of a demand upon a key that it denied until somebody changed it, in a flood most likely by
    /// taking the unit that was free. To ask first whether it denies still, and hear of the next change, is one
    /// command; to send the request, and ask behind it to hear of changes, would be two.
    pub async fn denied_again(&self, key: &[u8], demand: &Demand) -> Option<swlimit_window::Decision> {
        if demand.block.is_some() {
            return None; // which a question does not begin
        }
        let server = self.server.as_ref()?;
        let asking = self.denials.begin_again(key)?;
        let asked = Instant::now();
        // What may still have to be asked needs time, too.
        let answer = server.ask_tracked(commands::peek(key, demand), asked + server.timeout() / 2).await?;
        let decision = answer.and_then(|reply| reply.decision()).ok().filter(|decision| decision.granted == 0)?;
        asking.answered(demand, &decision, asked, None);
        Some(decision)
    }
}

/// A denial of so few ms is not worth a question.
const SHORTEST: u64 = 2;
