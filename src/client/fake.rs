//! A server for tests: the window crate behind a line with delays, in the time of tokio's paused clock.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use swlimit_window::{Decision, Entry, Geometry, Quota, Recording, Verdict};
use tokio::time::{sleep, Instant};

use crate::wire::{Answer, Command, Failure, Listener, Reply, Wire};

/// A server, as the network shows it.
#[derive(Clone)]
pub(crate) struct Fake(Arc<Inner>);

struct Inner {
    begun: Instant,
    state: Mutex<State>,
    listener: OnceLock<Arc<dyn Listener>>,
}

#[derive(Default)]
struct State {
    keys: HashMap<Vec<u8>, Entry>,
    tracked: HashSet<Vec<u8>>,
    /// How long a command is on its way, and its reply; the next ones first, then the last for ever.
    delays: Vec<(Duration, Duration)>,
    failure: Option<Failure>,
    is_untracked: bool,
    commands: Vec<String>,
}

/// Where the fake's clock begins, in ms.
const UNIX: u64 = 1_700_000_000_000;

impl Fake {
    /// A server that answers at once.
    pub fn new() -> Self {
        Self(Arc::new(Inner { begun: Instant::now(), state: Mutex::default(), listener: OnceLock::new() }))
    }

    /// How long each next command takes to the server and back; the last goes on.
    pub fn delay(&self, delays: impl IntoIterator<Item = (u64, u64)>) {
        let micros = |(there, back)| (Duration::from_micros(there), Duration::from_micros(back));
        let mut delays: Vec<_> = delays.into_iter().map(micros).collect();
        delays.reverse();
        self.0.state.lock().delays = delays;
    }

    /// Fail so from now on, or no longer.
    pub fn fail(&self, failure: Option<Failure>) {
        self.0.state.lock().failure = failure;
    }

    /// Tell nobody of changed keys.
    pub fn untracked(self) -> Self {
        self.0.state.lock().is_untracked = true;
        self
    }

    /// The commands so far, their words joined.
    pub fn commands(&self) -> Vec<String> {
        self.0.state.lock().commands.clone()
    }

    /// What it would answer now, without any delay.
    pub fn would(&self, key: &str, demand: &swlimit_window::Request) -> Decision {
        let state = self.0.state.lock();
        Entry::peek(state.keys.get(key.as_bytes()), self.now(), demand).unwrap()
    }

    /// Units held of a key.
    pub fn total(&self, key: &str) -> u64 {
        let mut state = self.0.state.lock();
        state.keys.get_mut(key.as_bytes()).map_or(0, |entry| entry.refundable(u64::MAX, None, self.now()))
    }

    /// Run a command at once, as another client does.
    pub fn run(&self, words: &str) -> Result<Reply, Failure> {
        self.answer(&words.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>(), false)
    }

    /// Its clock has whole ms, as a server's.
    fn now(&self) -> u64 {
        UNIX + self.0.begun.elapsed().as_millis() as u64
    }

    async fn exchange(&self, command: Command, is_tracked: bool) -> Result<Reply, Failure> {
        self.exchange_all(vec![command], is_tracked).await?.remove(0)
    }

    /// Commands that go out together arrive together.
    async fn exchange_all(
        &self,
        commands: Vec<Command>,
        is_tracked: bool,
    ) -> Result<Vec<Result<Reply, Failure>>, Failure> {
        let (there, back) = {
            let mut state = self.0.state.lock();
            match state.delays.len() {
                0 => Default::default(),
                1 => state.delays[0],
                _ => state.delays.pop().unwrap_or_default(),
            }
        };
        pass(there).await;
        if let Some(failure) = self.0.state.lock().failure.clone() {
            return Err(failure);
        }
        let words = |command: &Command| command.words().map(<[u8]>::to_vec).collect::<Vec<_>>();
        let replies = commands.iter().map(|command| self.answer(&words(command), is_tracked)).collect();
        pass(back).await;
        Ok(replies)
    }

    fn answer(&self, words: &[Vec<u8>], is_tracked: bool) -> Result<Reply, Failure> {
        let mut state = self.0.state.lock();
        let text: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        state.commands.push(text.join(" "));
        let now = self.now();
        let key = words.get(1).cloned().unwrap_or_default();
        let mut changed = Vec::new();
        let reply = match text[0].as_str() {
            "SWLIMIT.ALLOW" => {
                let (demand, options) = demand(&text[2..]);
                let entry = state.keys.entry(key.clone()).or_default();
                match Entry::decide(Some(entry), now, &demand).unwrap() {
                    Verdict::Granted(grant) => {
                        changed.push(key);
                        five(grant.apply(entry))
                    }
                    Verdict::Denied(decision) => match options.get("BLOCK") {
                        Some(ms) if entry.blocked_for(now).is_none() => {
                            entry.block(now + ms);
                            changed.push(key);
                            five(decision.blocked_for(Some(*ms)))
                        }
                        _ => five(decision),
                    },
                }
            }
            "SWLIMIT.PEEK" => {
                if is_tracked {
                    state.tracked.insert(key.clone());
                }
                five(Entry::peek(state.keys.get(&key), now, &demand(&text[2..]).0).unwrap())
            }
            "SWLIMIT.RECORD" => {
                let (demand, options) = demand(&text[2..]);
                let entry = state.keys.entry(key.clone()).or_default();
                let dated = options.get("AGE").map(|age| now - age);
                match Entry::record(Some(entry), now, dated, &demand).unwrap() {
                    Recording::Dropped(decision) => five(decision),
                    Recording::Counted(record) => {
                        changed.push(key);
                        five(record.apply(entry))
                    }
                }
            }
            "SWLIMIT.REFUND" => {
                let age = text.get(4).map(|age| swlimit_window::duration_or_zero(age.as_bytes()).unwrap());
                let units = text[2].parse().unwrap();
                let given = state.keys.get_mut(&key).map_or(0, |entry| entry.refund(units, age, now));
                if given > 0 {
                    changed.push(key);
                }
                Reply::Integer(given as i64)
            }
            "SWLIMIT.BLOCK" => {
                let ms = swlimit_window::duration(text[2].as_bytes()).unwrap();
                state.keys.entry(key.clone()).or_default().block(now + ms);
                changed.push(key);
                Reply::Integer((now + ms) as i64)
            }
            "SWLIMIT.UNBLOCK" => {
                state.keys.entry(key.clone()).or_default().unblock();
                changed.push(key);
                Reply::Integer(1)
            }
            "SWLIMIT.MALLOW" => {
                let count: usize = text[1].parse().unwrap();
                let strict = text.last().unwrap() == "STRICT";
                let members: Vec<_> = (0..count)
                    .map(|member| {
                        let quota = &text[2 + count + 4 * member..][..4];
                        let mut demand = demand(&[&quota[..3], &["COST".into(), quota[3].clone()]].concat()).0;
                        demand.strict = strict;
                        (words[2 + member].clone(), demand)
                    })
                    .collect();
                let denied = members
                    .iter()
                    .any(|(key, demand)| Entry::peek(state.keys.get(key), now, demand).unwrap().granted == 0);
                let mut replies = vec![Reply::Integer(i64::from(!denied))];
                for (key, demand) in members {
                    let entry = state.keys.entry(key.clone()).or_default();
                    match Entry::decide(Some(entry), now, &demand).unwrap() {
                        Verdict::Granted(grant) if !denied => {
                            replies.push(five(grant.apply(entry)));
                            changed.push(key);
                        }
                        _ => replies.push(five(Entry::peek(Some(entry), now, &demand).unwrap())),
                    }
                }
                Reply::Array(replies)
            }
            name => return Err(Failure::Reply(format!("ERR unknown command '{name}'"))),
        };
        let told: Vec<_> = changed.into_iter().filter(|key| state.tracked.remove(key)).collect();
        drop(state);
        // Told at once: before whoever caused or awaits a reply sees it.
        for key in told {
            if let Some(listener) = self.0.listener.get() {
                listener.changed(&key);
            }
        }
        Ok(reply)
    }
}

impl Wire for Fake {
    fn send(&self, command: Command) -> Answer<'_, Reply> {
        Box::pin(self.exchange(command, false))
    }

    fn send_all(&self, commands: Vec<Command>) -> Answer<'_, Vec<Result<Reply, Failure>>> {
        Box::pin(self.exchange_all(commands, false))
    }

    fn send_alone(&self, _: Command) -> Option<Answer<'_, Reply>> {
        None
    }

    fn send_tracked(&self, command: Command) -> Option<Answer<'_, Reply>> {
        if self.0.state.lock().is_untracked {
            return None;
        }
        Some(Box::pin(self.exchange(command, true)))
    }

    fn tell(&self, listener: Arc<dyn Listener>) {
        let _ = self.0.listener.set(listener);
    }

    fn renew(&self) {}
}

/// Timers have whole ms, even those of no time at all.
async fn pass(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// `limit window resolution [COST n] [PARTIAL] [STRICT] [AGE ms] [BLOCK ms]`: the demand, and the durations by their
/// names.
fn demand(words: &[String]) -> (swlimit_window::Request, HashMap<&str, u64>) {
    let ms = |word: &String| swlimit_window::duration_or_zero(word.as_bytes()).unwrap();
    let geometry = Geometry::new(ms(&words[1]), ms(&words[2])).unwrap();
    let quota = Quota { limit: words[0].parse().unwrap(), geometry };
    let mut demand = swlimit_window::Request { quota, cost: 1, partial: false, strict: false };
    let mut durations = HashMap::new();
    let mut options = words[3..].iter();
    while let Some(option) = options.next() {
        match option.as_str() {
            "COST" => demand.cost = options.next().unwrap().parse().unwrap(),
            "PARTIAL" => demand.partial = true,
            "STRICT" => demand.strict = true,
            name => drop(durations.insert(name, ms(options.next().unwrap()))),
        }
    }
    (demand, durations)
}

fn five(decision: Decision) -> Reply {
    let Decision { granted, limit, remaining, retry_after, reset_after } = decision;
    let never = |ms: Option<u64>| ms.map_or(-1, |ms| ms as i64);
    let integers = [granted as i64, limit as i64, remaining as i64, never(retry_after), reset_after as i64];
    Reply::Array(integers.map(Reply::Integer).to_vec())
}
