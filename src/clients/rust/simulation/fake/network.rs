//! The network before a server: how long everything takes, and what is cut, silent or refused.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::cluster_routing::Slot;
use swlimit_window::{Decision, Entry};
use tokio::sync::oneshot;
use tokio::time::{sleep, sleep_until, Instant};

use super::server::Server;
use crate::reason::Reason;
use crate::transport::{Connection, Event, Events, Failure, Pending, Purpose, Reply, Transport, Words};

/// A server behind a network. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Inner>);

struct Inner {
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    /// One, or the primaries of a cluster.
    servers: Vec<Server>,
    /// Slots that have moved away from the primary that had them first.
    moved: HashMap<u16, usize>,
    /// Of them, those that are still under way: who is redirected there has to ask.
    migrating: HashSet<u16>,
    /// Nodes that have left the cluster: they know of no slots.
    left: HashSet<usize>,
    /// Replicas, as they were when they were copied last.
    replicas: Vec<Option<Server>>,
    /// Primaries that a replica has replaced, and that do not know.
    former: Vec<Option<Server>>,
    /// How long what is sent is on its way, and its reply; the next ones first, then the last for ever.
    delays: Vec<(Duration, Duration)>,
    /// Each way takes this much longer.
    slower: Duration,
    /// A connection takes this much longer to be made.
    opening: Duration,
    /// What is wrong with the network before each.
    faults: Vec<Fault>,
    has_tracking: bool,
    /// Lets clients wait.
    has_waiting: bool,
    /// How much the server's clock is ahead, in ms.
    ahead: i64,
    connections: HashMap<u64, Weak<Line>>,
    /// Which connections get a key's invalidations.
    tracked: HashMap<Vec<u8>, HashSet<u64>>,
    /// Who waits for a hold, by key and id.
    waiting_ids: HashMap<WaitingId, (u64, Weak<Line>)>,
    /// When units of a key were given back the last time, and when somebody else lets it expire.
    given_back: HashMap<Vec<u8>, Instant>,
    expiries: HashMap<Vec<u8>, Instant>,
    /// Replies to lose, and how many were lost.
    losing: Option<Losing>,
    lost_replies: u64,
    numbers: u64,
    /// Units that were counted and whose reply never came, and those given back so, by key.
    pub undelivered: u64,
    events: u64,
}

/// A key, and the id with which somebody waits for it.
type WaitingId = (Vec<u8>, Vec<u8>);

/// The next replies to batches with such a command are lost.
struct Losing {
    command: &'static [u8],
    left: usize,
    /// The connection falls silent; otherwise it is cut.
    is_silent: bool,
}

/// What is wrong with the network before a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Nobody listens: connections are refused.
    Down,
    /// Nothing arrives, without an event.
    BlackHole,
}

/// One connection.
struct Line {
    number: u64,
    node: usize,
    inner: Arc<Inner>,
    purpose: Purpose,
    events: Events,
    way: Mutex<Way>,
}

struct Way {
    /// Nothing overtakes what was sent before.
    arrival: Instant,
    reply: Instant,
    is_cut: bool,
    /// Half open: nothing arrives any more, without an event.
    is_silent: bool,
    /// The server is no primary any more, and this connection is still open.
    is_demoted: bool,
    /// It leads to a primary that was replaced, and does not know.
    is_former: bool,
    waiting: HashMap<u64, oneshot::Sender<Result<Reply, Failure>>>,
}

/// What a connection leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Primary,
    /// A replica that was the primary, and knows it.
    Demoted,
    /// A primary that was replaced, and does not know.
    Former,
}

/// Slots of a cluster.
const SLOTS: u16 = 16_384;
/// Where the server's clock begins, in Unix ms.
const UNIX: u64 = 1_700_000_000_000;
/// After so long, a former primary has copied all from the new one. It empties itself first, and who tracks keys
/// hears that any of them may have changed.
const RESYNCED: Duration = Duration::from_secs(1);

impl Fake {
    /// A server that answers at once.
    pub fn new() -> Self {
        Self::cluster(1)
    }

    /// So many primaries of a cluster; or one server.
    pub fn cluster(nodes: usize) -> Self {
        let state = State {
            servers: (0..nodes as u64)
                .map(|node| Server { run_id: 1, replication_id: node, ..Server::default() })
                .collect(),
            moved: HashMap::new(),
            migrating: HashSet::new(),
            left: HashSet::new(),
            replicas: vec![None; nodes],
            former: vec![None; nodes],
            delays: Vec::new(),
            slower: Duration::ZERO,
            opening: Duration::ZERO,
            faults: vec![Fault::None; nodes],
            has_tracking: true,
            has_waiting: false,
            ahead: 0,
            connections: HashMap::new(),
            tracked: HashMap::new(),
            waiting_ids: HashMap::new(),
            given_back: HashMap::new(),
            expiries: HashMap::new(),
            losing: None,
            lost_replies: 0,
            numbers: 0,
            undelivered: 0,
            events: 0,
        };
        Self(Arc::new(Inner { begun: Instant::now(), state: Mutex::new(state) }))
    }

    /// Tells nobody of changed keys.
    pub fn untracked(self) -> Self {
        self.0.state.lock().has_tracking = false;
        self
    }

    /// A server without the module: the script decides.
    pub fn scripted(self) -> Self {
        self.0.state.lock().servers.iter_mut().for_each(|server| server.is_scripted = true);
        self
    }

    /// The module is loaded. What the script has counted stays.
    pub fn load_module(&self) {
        for server in &mut self.0.state.lock().servers {
            (server.is_scripted, server.was_scripted) = (false, true);
        }
    }

    /// Lets clients wait for units: ACQUIRE.
    pub fn waiting(self) -> Self {
        self.0.state.lock().has_waiting = true;
        self
    }

    /// How many µs each next batch of commands takes to the server and back; the last goes on.
    pub fn delay(&self, delays: impl IntoIterator<Item = (u64, u64)>) {
        let micros = |(there, back)| (Duration::from_micros(there), Duration::from_micros(back));
        let mut delays: Vec<_> = delays.into_iter().map(micros).collect();
        delays.reverse();
        self.0.state.lock().delays = delays;
    }

    /// Each way takes this much longer.
    pub fn slower(&self, by: Duration) {
        self.0.state.lock().slower = by;
    }

    /// A connection takes this much longer to be made.
    pub fn open_later(&self, by: Duration) {
        self.0.state.lock().opening = by;
    }

    /// Refuses what writes with this error from now on, or no longer.
    pub fn fail(&self, failure: Option<&str>) {
        (0..self.nodes()).for_each(|node| self.fail_at(node, failure));
    }

    /// The same of one node.
    pub fn fail_at(&self, node: usize, failure: Option<&str>) {
        self.0.state.lock().servers[node].failure = failure.map(str::to_owned);
    }

    /// Something is wrong with the network from now on. Where nobody listens, all connections are cut.
    pub fn fault(&self, fault: Fault) {
        (0..self.nodes()).for_each(|node| self.fault_at(node, fault));
    }

    /// The same before one node.
    pub fn fault_at(&self, node: usize, fault: Fault) {
        self.0.state.lock().faults[node] = fault;
        if fault == Fault::Down {
            self.lines_to(node).iter().for_each(|line| line.cut());
        }
    }

    pub fn nodes(&self) -> usize {
        self.0.state.lock().servers.len()
    }

    /// The node that has a key.
    pub fn node(&self, key: &str) -> usize {
        self.0.state.lock().owner(key.as_bytes())
    }

    /// The address of that node.
    pub fn address_of(&self, key: &str) -> String {
        match self.nodes() {
            1 => self.address(),
            _ => address(self.node(key)),
        }
    }

    /// A key's slot moves to a node, with what is counted there.
    pub fn reshard(&self, key: &str, to: usize) {
        let mut state = self.0.state.lock();
        let (slot, from) = (slot_of(key.as_bytes()), state.owner(key.as_bytes()));
        let keys: Vec<_> = state.servers[from].keys.keys().filter(|key| slot_of(key) == slot).cloned().collect();
        for key in &keys {
            let entry = state.servers[from].keys.remove(key).unwrap_or_default();
            state.servers[to].keys.insert(key.clone(), entry);
        }
        state.moved.insert(slot, to);
        let mut told = Vec::new();
        for key in keys {
            for line in state.tracked.remove(&key).into_iter().flatten() {
                let line = state.connections.get(&line).and_then(Weak::upgrade);
                told.extend(line.map(|line| (line, key.clone())));
            }
        }
        drop(state);
        told.into_iter().for_each(|(line, key)| line.tell(Event::Changed(key)));
    }

    /// A key has left with its slot, which is still under way to a node.
    pub fn migrate(&self, key: &str, to: usize) {
        self.reshard(key, to);
        self.0.state.lock().migrating.insert(slot_of(key.as_bytes()));
    }

    /// A node tells an empty table of slots from now on.
    pub fn forget_slots(&self, node: usize) {
        self.0.state.lock().left.insert(node);
    }

    /// It tells all of them again.
    pub fn remember_slots(&self, node: usize) {
        self.0.state.lock().left.remove(&node);
    }

    fn lines_to(&self, node: usize) -> Vec<Arc<Line>> {
        let mut lines = self.lines();
        lines.retain(|line| line.node == node);
        lines
    }

    fn lines(&self) -> Vec<Arc<Line>> {
        let mut state = self.0.state.lock();
        state.connections.retain(|_, line| line.strong_count() > 0);
        let mut lines: Vec<_> = state.connections.values().filter_map(Weak::upgrade).collect();
        lines.sort_by_key(|line| line.number);
        lines
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.lines().iter().for_each(|line| line.cut());
    }

    /// Closes the connections on which clients have waited, and nobody waits now.
    pub fn close_idle(&self) {
        let is_idle = |line: &&Arc<Line>| line.purpose == Purpose::Waiting && line.way.lock().waiting.is_empty();
        self.lines().iter().filter(is_idle).for_each(|line| line.cut());
    }

    /// All connections there are fall silent for ever, without an event.
    pub fn half_open(&self) {
        self.lines().iter().for_each(|line| line.way.lock().is_silent = true);
    }

    /// So many of the next replies to batches with a command of this name are lost, and their connections: they are
    /// cut, or fall silent without an event.
    pub fn lose_replies(&self, command: &'static str, count: usize, is_silent: bool) {
        self.0.state.lock().losing = Some(Losing { command: command.as_bytes(), left: count, is_silent });
    }

    /// Loses no more replies.
    pub fn keep_replies(&self) {
        self.0.state.lock().losing = None;
    }

    /// How many replies were lost so.
    pub fn lost_replies(&self) -> u64 {
        self.0.state.lock().lost_replies
    }

    /// A server starts again, with its data or without.
    pub fn restart(&self, node: usize, keeps_data: bool) {
        self.lines_to(node).iter().for_each(|line| line.cut());
        let mut state = self.0.state.lock();
        let server = &mut state.servers[node];
        server.run_id += 1;
        server.failure = None;
        if !keeps_data {
            server.replication_id += 1000;
            server.keys.clear();
            server.holds.clear();
        }
    }

    /// A replica is as the primary is now.
    pub fn replicate(&self, node: usize) {
        let mut state = self.0.state.lock();
        let replica = Server { commands: Vec::new(), ..state.servers[node].clone() };
        state.replicas[node] = Some(replica);
    }

    /// The replica takes over, with what it has. The old primary closes its connections, or refuses writes from then on
    /// and soon copies all from the new one.
    pub fn fail_over(&self, node: usize, closes: bool) {
        for line in self.lines_to(node) {
            match closes {
                true => line.cut(),
                false => {
                    line.way.lock().is_demoted = true;
                    tokio::spawn(async move {
                        sleep(RESYNCED).await;
                        if !line.way.lock().is_cut {
                            line.tell(Event::AllChanged);
                        }
                    });
                }
            }
        }
        self.promote(node);
    }

    fn promote(&self, node: usize) {
        let mut state = self.0.state.lock();
        let replica = state.replicas[node].take().unwrap_or_default();
        let server = &mut state.servers[node];
        (server.keys, server.holds) = (replica.keys, replica.holds);
        server.run_id += 1;
        server.replication_id += 1000;
        server.failure = None;
    }

    /// The replica takes over, and the old primary does not know: it goes on with all that are connected to it.
    pub fn divide(&self, node: usize) {
        self.lines_to(node).iter().for_each(|line| line.way.lock().is_former = true);
        {
            let mut state = self.0.state.lock();
            let former =
                Server { commands: Vec::new(), counted: HashMap::new(), recorded: 0, ..state.servers[node].clone() };
            state.former[node] = Some(former);
        }
        self.promote(node);
    }

    /// The sentinels name the primary that has taken over: connections to the old one are given up.
    pub fn announce(&self, node: usize) {
        let is_former = |line: &&Arc<Line>| line.way.lock().is_former;
        self.lines_to(node).iter().filter(is_former).for_each(|line| line.cut());
        let mut state = self.0.state.lock();
        let Some(former) = state.former[node].take() else { return };
        let server = &mut state.servers[node];
        server.recorded += former.recorded;
        for (key, units) in former.counted {
            *server.counted.entry(key).or_default() += units;
        }
    }

    /// Refuses everything that writes to a key with this error.
    pub fn refuse(&self, key: &str, error: &str) {
        self.0.state.lock().at(key.as_bytes()).refused.insert(key.into(), error.into());
    }

    /// No longer refuses anything of a key.
    pub fn accept(&self, key: &str) {
        self.0.state.lock().servers.iter_mut().for_each(|server| drop(server.refused.remove(key.as_bytes())));
    }

    /// The user may not use this command.
    pub fn forbid(&self, command: &str) {
        self.0.state.lock().servers.iter_mut().for_each(|server| server.forbidden.push(command.into()));
    }

    /// A key expires after so long, which the server notices when it is asked.
    pub fn expire(&self, key: &str, after: Duration) {
        let mut state = self.0.state.lock();
        let at = self.0.now(&state) + after.as_millis() as u64;
        state.expiries.insert(key.into(), Instant::now() + after);
        state.at(key.as_bytes()).expiries.insert(key.into(), at);
    }

    /// The server's clock jumps.
    pub fn jump(&self, ms: i64) {
        self.0.state.lock().ahead += ms;
    }

    /// What time the server has.
    pub fn unix_ms(&self) -> u64 {
        self.0.now(&self.0.state.lock())
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.lines().iter().filter(|line| !line.way.lock().is_cut).count()
    }

    /// The commands so far, their words joined, except those about the server itself.
    pub fn commands(&self) -> Vec<String> {
        let state = self.0.state.lock();
        let commands = &state.servers[0].commands;
        let is_about_server = |at: usize| match commands[at].as_str() {
            "PING" => true,
            // Who it is, and what time it has.
            "TIME" => at > 0 && commands[at - 1].starts_with("INFO"),
            words => words.starts_with("INFO"),
        };
        (0..commands.len()).filter(|at| !is_about_server(*at)).map(|at| commands[at].clone()).collect()
    }

    /// How much has happened so far: commands, connections, replies.
    pub fn events(&self) -> u64 {
        self.0.state.lock().events
    }

    /// What it would answer now, without any delay.
    pub fn would(&self, key: &str, demand: &swlimit_window::Request) -> Decision {
        let mut state = self.0.state.lock();
        let now = self.0.now(&state);
        Entry::peek(state.at(key.as_bytes()).alive(key.as_bytes(), now), now, demand).unwrap()
    }

    /// When units of a key were given back the last time, or the key expired before its end.
    pub fn given_back(&self, key: &str) -> Option<Instant> {
        let state = self.0.state.lock();
        let expired = state.expiries.get(key.as_bytes()).filter(|at| **at <= Instant::now());
        state.given_back.get(key.as_bytes()).into_iter().chain(expired).max().copied()
    }

    /// Whether a hold is live by the server's clock.
    pub fn is_held(&self, key: &str, id: &[u8]) -> bool {
        let mut state = self.0.state.lock();
        let now = self.0.now(&state);
        state.at(key.as_bytes()).holds.get(key.as_bytes()).is_some_and(|holds| holds.get(id, now).is_some())
    }

    /// How many holds of a key are live by the server's clock.
    pub fn held(&self, key: &str) -> u64 {
        let mut state = self.0.state.lock();
        let now = self.0.now(&state);
        state.at(key.as_bytes()).holds.get(key.as_bytes()).map_or(0, |holds| holds.live(now).count)
    }

    /// Units held of a key.
    pub fn total(&self, key: &str) -> u64 {
        let mut state = self.0.state.lock();
        let now = self.0.now(&state);
        state.at(key.as_bytes()).keys.get(key.as_bytes()).map_or(0, |entry| entry.refundable(u64::MAX, None, now))
    }

    /// Units that were counted so far, of all keys.
    pub fn counted(&self) -> u64 {
        let state = self.0.state.lock();
        state.servers.iter().chain(state.former.iter().flatten()).flat_map(|server| server.counted.values()).sum()
    }

    /// Units of them that were recorded.
    pub fn recorded(&self) -> u64 {
        self.0.state.lock().servers.iter().map(|server| server.recorded).sum()
    }

    /// Units that were counted in commands whose reply never came.
    pub fn undelivered(&self) -> u64 {
        self.0.state.lock().undelivered
    }

    /// Runs a command at once, as another client does.
    pub fn run(&self, words: &str) -> Reply {
        let command: Vec<Vec<u8>> = words.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let node = self.node(&String::from_utf8_lossy(&command[1]));
        self.0.execute(node, &[command], None, To::Primary).0
    }
}

fn address(node: usize) -> String {
    format!("fake:{node}")
}

/// The number of a key's slot.
fn slot_of(key: &[u8]) -> u16 {
    static NUMBERS: LazyLock<HashMap<Slot, u16>> =
        LazyLock::new(|| (0..SLOTS).filter_map(|number| Some((Slot::new(number)?, number))).collect());
    NUMBERS[&Slot::for_key(key)]
}

impl State {
    fn owner(&self, key: &[u8]) -> usize {
        match self.servers.len() {
            1 => 0,
            _ => self.owner_of(slot_of(key)),
        }
    }

    fn owner_of(&self, slot: u16) -> usize {
        let first = usize::from(slot) * self.servers.len() / usize::from(SLOTS);
        self.moved.get(&slot).copied().unwrap_or(first)
    }

    /// The first slot that a primary had first.
    fn first_of(&self, node: usize) -> u16 {
        (node * usize::from(SLOTS)).div_ceil(self.servers.len()) as u16
    }

    fn at(&mut self, key: &[u8]) -> &mut Server {
        let node = self.owner(key);
        &mut self.servers[node]
    }

    /// What a node of a cluster says of slots that it has not.
    fn of_cluster(&self, node: usize, words: &[Vec<u8>]) -> Option<Reply> {
        if words[0] == b"CLUSTER" {
            return Some(if self.left.contains(&node) { Reply::Array(Vec::new()) } else { self.slots() });
        }
        let key = match words[0].as_slice() {
            b"ASKING" => return Some(Reply::Bytes(b"OK".to_vec())),
            b"SWLIMIT.MALLOW" => words.get(2),
            name if name.starts_with(b"SWLIMIT.") || name == b"PTTL" || name == b"DEL" => words.get(1),
            _ => None,
        };
        let key = key?;
        let (owner, slot) = (self.owner(key), slot_of(key));
        let code = if self.migrating.contains(&slot) { "ASK" } else { "MOVED" };
        (owner != node).then(|| Reply::Error(format!("{code} {slot} {}", address(owner))))
    }

    /// Whether the reply to these gets lost, and if so, whether silently.
    fn loses_reply(&mut self, commands: &[Vec<Vec<u8>>]) -> Option<bool> {
        let losing = self.losing.as_mut().filter(|losing| commands.iter().any(|words| words[0] == losing.command))?;
        let is_silent = losing.is_silent;
        losing.left -= 1;
        if losing.left == 0 {
            self.losing = None;
        }
        self.lost_replies += 1;
        Some(is_silent)
    }

    fn slots(&self) -> Reply {
        // Only at these slots another owner begins.
        let mut firsts: Vec<_> = (0..self.servers.len()).map(|node| self.first_of(node)).collect();
        firsts.extend(self.moved.keys().flat_map(|slot| [*slot, slot + 1]));
        firsts.push(SLOTS);
        firsts.sort_unstable();
        firsts.dedup();
        let range = |bounds: &[u16]| {
            let node = self.owner_of(bounds[0]) as i64;
            let primary = Reply::Array(vec![Reply::Bytes(b"fake".to_vec()), Reply::Integer(node)]);
            Reply::Array(vec![Reply::Integer(bounds[0].into()), Reply::Integer((bounds[1] - 1).into()), primary])
        };
        Reply::Array(firsts.windows(2).map(range).collect())
    }
}

/// After how long somebody who waits for a hold is looked at again.
const LOOK: u64 = 20;

/// When a HOLD that was denied is looked at again within its time, and what is asked then.
fn waits_for_hold(commands: &[Vec<Vec<u8>>], reply: &Reply) -> Option<(Duration, Vec<Vec<u8>>)> {
    let [words] = commands else { return None };
    let held = reply.hold().ok().filter(|_| words[0] == b"SWLIMIT.HOLD")?;
    let at = words.iter().position(|word| word == b"WAIT")? + 1;
    let left = swlimit_window::duration_or_zero(&words[at])?;
    let wait = LOOK.min(left);
    held.retry_after.filter(|_| held.granted == 0 && wait > 0)?;
    let mut words = words.clone();
    words[at] = format!("{}ms", left - wait).into_bytes();
    Some((Duration::from_millis(wait), words))
}

/// Where an ACQUIRE that was denied may be granted within its time: after how long, and what is asked then.
fn waits(commands: &[Vec<Vec<u8>>], reply: &Reply) -> Option<(Duration, Vec<Vec<u8>>)> {
    let [words] = commands else { return None };
    let decision = reply.decision().ok().filter(|_| words[0] == b"SWLIMIT.ACQUIRE")?;
    let left = swlimit_window::duration_or_zero(&words[5])?;
    let wait = decision.retry_after.filter(|wait| decision.granted == 0 && (1..=left).contains(wait))?;
    let mut words = words.clone();
    words[5] = format!("{}ms", left - wait).into_bytes();
    Some((Duration::from_millis(wait), words))
}

impl Inner {
    /// Its clock has whole ms, as a server's.
    fn now(&self, state: &State) -> u64 {
        (UNIX + self.begun.elapsed().as_millis() as u64).saturating_add_signed(state.ahead)
    }

    /// Executes commands that have arrived; the replies, and the units that they counted.
    fn execute(&self, node: usize, commands: &[Vec<Vec<u8>>], tracking: Option<u64>, to: To) -> (Reply, u64) {
        let mut state = self.state.lock();
        let now = self.now(&state);
        let (mut replies, mut told, mut units) = (Vec::new(), Vec::new(), 0);
        for words in commands {
            state.events += 1;
            if let Some(reply) = state.of_cluster(node, words) {
                replies.push(reply);
                continue;
            }
            let words = &state.servers[node].understood(words);
            if to == To::Demoted && !super::server::is_read(&words[0]) {
                replies.push(Reply::Error("READONLY You can't write against a read only replica.".into()));
                continue;
            }
            let answer = match (to, &mut state.former[node]) {
                (To::Former, Some(former)) => former.execute(words, now),
                _ => state.servers[node].execute(words, now),
            };
            units += answer.units;
            replies.push(answer.reply);
            // The name alone asks whether the command is known.
            if let [name, key, ..] = words.as_slice() {
                if name == b"SWLIMIT.REFUND" {
                    state.given_back.insert(key.clone(), Instant::now());
                }
            }
            for key in answer.changed {
                told.extend(state.tracked.remove(&key).into_iter().flatten().map(|line| (line, key.clone())));
            }
            let is_read = matches!(&*words[0], b"SWLIMIT.PEEK" | b"SWLIMIT.INFO");
            if let (Some(line), Some(key)) = (tracking.filter(|_| is_read), words.get(1)) {
                state.tracked.entry(key.clone()).or_default().insert(line);
            }
        }
        let told: Vec<_> =
            told.into_iter().filter_map(|(line, key)| Some((state.connections.get(&line)?.upgrade()?, key))).collect();
        drop(state);
        // At once: before anybody sees a reply.
        for (line, key) in told {
            line.tell(Event::Changed(key));
        }
        let reply = match replies.len() {
            1 => replies.remove(0),
            _ => Reply::Array(replies),
        };
        (reply, units)
    }
}

/// What is sent to make a connection arrives, or is refused, or is lost without a word.
async fn arrives(fault: Fault) -> Result<(), Failure> {
    match fault {
        Fault::None => Ok(()),
        Fault::Down => Err(Failure::Connection(Reason::Refused.because("connection refused"))),
        Fault::BlackHole => std::future::pending().await,
    }
}

impl Transport for Fake {
    fn connect(&self, node: Option<&str>, purpose: Purpose, events: Events) -> Pending<Box<dyn Connection>> {
        let node = node.map_or(0, |address| address.rsplit(':').next().unwrap().parse().unwrap());
        let inner = Arc::clone(&self.0);
        let offers = self.offers(purpose);
        Box::pin(async move {
            let (fault, delay) = {
                let mut state = inner.state.lock();
                state.events += 1;
                let slower = state.slower;
                (
                    state.faults[node],
                    state.delays.last().map_or(Duration::ZERO, |(there, back)| *there + *back)
                        + 2 * slower
                        + state.opening,
                )
            };
            arrives(fault).await?;
            pass(delay).await;
            if !offers {
                return Err(Failure::Refused("ERR not offered".into()));
            }
            let fault = inner.state.lock().faults[node];
            arrives(fault).await?;
            let mut state = inner.state.lock();
            state.numbers += 1;
            let now = Instant::now();
            let way = Way {
                arrival: now,
                reply: now,
                is_cut: false,
                is_silent: false,
                is_demoted: false,
                is_former: false,
                waiting: HashMap::new(),
            };
            let number = state.numbers;
            let line =
                Arc::new(Line { number, node, inner: Arc::clone(&inner), purpose, events, way: Mutex::new(way) });
            state.connections.insert(number, Arc::downgrade(&line));
            Ok(Box::new(Handle(line)) as Box<dyn Connection>)
        })
    }

    fn seeds(&self) -> Vec<String> {
        match self.nodes() {
            1 => Vec::new(),
            nodes => (0..nodes).map(address).collect(),
        }
    }

    fn address(&self) -> String {
        "fake".into()
    }

    fn offers(&self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Requests => true,
            Purpose::Tracking => self.0.state.lock().has_tracking,
            Purpose::Waiting => self.0.state.lock().has_waiting,
        }
    }
}

/// The client's end of a connection: dropped, it is closed once nothing is waited for.
struct Handle(Arc<Line>);

impl Connection for Handle {
    fn send(&self, command: &dyn Words) -> Pending<Reply> {
        let (line, words) = (Arc::clone(&self.0), vec![words(command)]);
        Box::pin(async move { line.send(words).await })
    }

    fn send_all(&self, commands: &[&dyn Words]) -> Pending<Reply> {
        let (line, words) = (Arc::clone(&self.0), commands.iter().map(|command| words(*command)).collect::<Vec<_>>());
        let is_one = words.len() == 1;
        Box::pin(async move {
            let reply = line.send(words).await?;
            Ok(if is_one { Reply::Array(vec![reply]) } else { reply })
        })
    }
}

fn words(command: &dyn Words) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    command.each(&mut |word| words.push(word.to_vec()));
    words
}

impl Line {
    /// Sends commands: they arrive, and are executed, whether or not anybody waits for the reply.
    async fn send(self: &Arc<Self>, commands: Vec<Vec<Vec<u8>>>) -> Result<Reply, Failure> {
        let (there, back) = {
            let mut state = self.inner.state.lock();
            let (there, back) = match state.delays.len() {
                0 => Default::default(),
                1 => state.delays[0],
                _ => state.delays.pop().unwrap_or_default(),
            };
            (there + state.slower, back + state.slower)
        };
        let (reply, replied) = oneshot::channel();
        let number = {
            let mut way = self.way.lock();
            if way.is_cut {
                return Err(Failure::Connection(Reason::Disconnected.because("broken pipe")));
            }
            way.arrival = way.arrival.max(Instant::now() + there);
            let number = self.inner.state.lock().numbers;
            self.inner.state.lock().numbers += 1;
            way.waiting.insert(number, reply);
            number
        };
        if there.is_zero() && back.is_zero() {
            self.arrive(number, &commands, back);
        } else {
            let (line, arrival) = (Arc::clone(self), self.way.lock().arrival);
            tokio::spawn(async move {
                sleep_until(arrival).await;
                line.arrive(number, &commands, back);
            });
        }
        replied.await.unwrap_or_else(|_| Err(Failure::Connection(Reason::Disconnected.because("connection reset"))))
    }

    fn arrive(self: &Arc<Self>, number: u64, commands: &[Vec<Vec<u8>>], back: Duration) {
        let is_lost = {
            let way = self.way.lock();
            way.is_cut || way.is_silent || self.inner.state.lock().faults[self.node] != Fault::None
        };
        if is_lost {
            return self.lose(number);
        }
        let tracking = (self.purpose == Purpose::Tracking).then_some(self.number);
        let to = match &*self.way.lock() {
            Way { is_demoted: true, .. } => To::Demoted,
            Way { is_former: true, .. } => To::Former,
            _ => To::Primary,
        };
        let (reply, units) = self.inner.execute(self.node, commands, tracking, to);
        let loses_reply = self.inner.state.lock().loses_reply(commands);
        match loses_reply {
            Some(true) => self.way.lock().is_silent = true,
            Some(false) => self.cut(),
            None => {}
        }
        // One that waits is answered when it is granted, or its time is up.
        let again = waits(commands, &reply).or_else(|| waits_for_hold(commands, &reply));
        if let (Purpose::Waiting, Some(again)) = (self.purpose, again) {
            self.take_over_wait(number, &commands[0]);
            let line = Arc::clone(self);
            tokio::spawn(async move {
                sleep(again.0).await;
                let is_waited_for = line.way.lock().waiting.get(&number).is_some_and(|waiting| !waiting.is_closed());
                if is_waited_for {
                    line.arrive(number, &[again.1], back);
                }
            });
            return;
        }
        if back.is_zero() {
            return self.deliver(number, reply, units);
        }
        let at = {
            let mut way = self.way.lock();
            way.reply = way.reply.max(Instant::now() + back);
            way.reply
        };
        let line = Arc::clone(self);
        tokio::spawn(async move {
            sleep_until(at).await;
            line.deliver(number, reply, units);
        });
    }

    /// An id waits once: a second wait of it takes over the place.
    fn take_over_wait(self: &Arc<Self>, number: u64, words: &[Vec<u8>]) {
        let [name, key, _, _, id, ..] = words else { return };
        if name != b"SWLIMIT.HOLD" {
            return;
        }
        let own = (number, Arc::downgrade(self));
        let before = self.inner.state.lock().waiting_ids.insert((key.clone(), id.clone()), own);
        let before = before.filter(|(other, _)| *other != number);
        if let Some((other, line)) = before.and_then(|(other, line)| Some((other, line.upgrade()?))) {
            line.deliver(other, Reply::Error("UNBLOCKED another client now waits for this id".into()), 0);
        }
    }

    fn deliver(&self, number: u64, reply: Reply, units: u64) {
        let is_lost = {
            let way = self.way.lock();
            way.is_cut || way.is_silent || self.inner.state.lock().faults[self.node] == Fault::BlackHole
        };
        let waiting = if is_lost { None } else { self.way.lock().waiting.remove(&number) };
        self.inner.state.lock().events += 1;
        // Where nobody takes the reply, its units are nobody's.
        if waiting.is_none_or(|waiting| waiting.send(Ok(reply)).is_err()) {
            self.inner.state.lock().undelivered += units;
            self.lose(number);
        }
    }

    /// Nothing will come. A cut connection says so, a silent one does not.
    fn lose(&self, number: u64) {
        let mut way = self.way.lock();
        if way.is_cut {
            way.waiting.remove(&number);
        }
    }

    fn cut(&self) {
        let is_silent = {
            let mut way = self.way.lock();
            way.is_cut = true;
            if !way.is_silent {
                way.waiting.clear();
            }
            way.is_silent
        };
        if !is_silent {
            self.tell(Event::Closed);
        }
    }

    fn tell(&self, event: Event) {
        let is_heard = !self.way.lock().is_silent && self.inner.state.lock().faults[self.node] != Fault::BlackHole;
        if is_heard {
            (self.events)(event);
        }
    }
}

/// Timers have whole ms, even those of no time at all.
async fn pass(time: Duration) {
    if !time.is_zero() {
        sleep_until(Instant::now() + time).await;
    }
}
