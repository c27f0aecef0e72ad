//! What the server answers about holds.

use swlimit_hold::{Decision, Holds, Request, Verdict};

use super::server::Server;
use crate::transport::Reply;

impl Server {
    /// `HOLD key limit ttl id [COST n] [WAIT ms]`; a waiting client asks again.
    pub fn hold(&mut self, words: &[Vec<u8>], text: &[String], now: u64) -> Result<Reply, String> {
        let option = |name: &str| text[5..].iter().position(|word| word == name).map(|at| &text[5 + at + 1]);
        let cost = option("COST").map_or(1, |cost| cost.parse().unwrap());
        let request = Request { limit: text[2].parse().unwrap(), ttl: ms(&text[3]), id: &words[4], cost };
        let holds = self.holds.entry(words[1].clone()).or_default();
        let verdict = Holds::decide(Some(holds), now, &request, 1000).map_err(|_| "ERR too many holds")?;
        Ok(six(match verdict {
            Verdict::Denied(decision) => decision,
            Verdict::Renewed(decision) => {
                holds.renew(&words[4], now + request.ttl);
                decision
            }
            Verdict::Granted(grant) => {
                holds.sweep(now);
                grant.apply(holds, None)
            }
        }))
    }

    /// `RENEW key ttl id [id …]`
    pub fn renew(&mut self, words: &[Vec<u8>], text: &[String], now: u64) -> Reply {
        let holds = self.holds.entry(words[1].clone()).or_default();
        holds.sweep(now);
        let renewed = words[3..].iter().map(|id| {
            holds.renew(id, now + ms(&text[2]));
            Reply::Integer(holds.get(id, now).is_some().into())
        });
        Reply::Array(renewed.collect())
    }

    /// `RELEASE key id [id …]`
    pub fn release(&mut self, words: &[Vec<u8>], now: u64) -> Reply {
        let holds = self.holds.entry(words[1].clone()).or_default();
        holds.sweep(now);
        let freed: u64 = words[2..].iter().filter_map(|id| holds.release(id)).map(|hold| hold.units()).sum();
        Reply::Integer(freed as i64)
    }

    /// `INFO key`
    pub fn info(&self, key: &[u8], now: u64) -> Result<Reply, String> {
        let holds = self.holds.get(key).filter(|holds| holds.live(now).count > 0).ok_or("ERR no such key")?;
        let live = holds.live(now);
        let field = |name: &str, number: u64| [Reply::Bytes(name.into()), Reply::Integer(number as i64)];
        Ok(Reply::Array(
            [field("holds", live.count), field("units", live.units), field("end", holds.last_end())].concat(),
        ))
    }
}

fn ms(word: &str) -> u64 {
    swlimit_window::duration(word.as_bytes()).unwrap()
}

fn six(decision: Decision) -> Reply {
    let Decision { granted, limit, remaining, retry_after, expires_after, token } = decision;
    let retry_after = retry_after.map_or(-1, |ms| ms as i64);
    let integers = [granted as i64, limit as i64, remaining as i64, retry_after, expires_after as i64, token as i64];
    Reply::Array(integers.map(Reply::Integer).to_vec())
}
