//! What the server answers about holds.

use swlimit_hold::{Decision, Holds, KeyDigest, Request, Reservation, Reserved, Verdict};
use swlimit_window::{Entry, Recording, WarmUp};

use super::server::{clauses, five, member, Server};
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

    /// `ADMIT numkeys key [key …] clause [clause …]`, of rates and holds.
    pub fn admit(&mut self, text: &[String], words: &[Vec<u8>], now: u64, changed: &mut Vec<Vec<u8>>) -> Reply {
        let count: usize = text[1].parse().unwrap();
        let clauses = clauses(text, count, 5).into_iter().enumerate();
        // Each with the places of its key and its id.
        let members: Vec<_> = clauses.map(|(at, clause)| (2 + at, clause.start + 3, &text[clause])).collect();
        let is_hold = |clause: &[String]| clause[0] == "HOLD";
        let first = members.iter().find(|(.., clause)| is_hold(clause));
        let first = first.map(|(at, id, _)| (words[*at].clone(), words[*id].clone()));
        let kept = first.as_ref().and_then(|(key, id)| {
            let hold = self.holds.get(key)?.get(id, now)?;
            Some(hold.reserved().to_vec()).filter(|reserved| !reserved.is_empty())
        });
        // With `apply` each is taken; without, only looked at.
        let mut each = |server: &mut Self, apply: bool| -> Vec<(u64, Reply, Option<Reserved>)> {
            let one = |&(at, id, clause): &(usize, usize, &[String])| {
                let key = &words[at];
                if is_hold(clause) {
                    let id = &words[id];
                    let request = Request {
                        limit: clause[1].parse().unwrap(),
                        ttl: ms(&clause[2]),
                        id,
                        cost: clause[4].parse().unwrap(),
                    };
                    let holds = server.holds.entry(key.clone()).or_default();
                    let decision = match Holds::decide(Some(holds), now, &request, 1000).unwrap() {
                        Verdict::Denied(decision) => decision,
                        Verdict::Renewed(decision) => {
                            if apply {
                                holds.renew(id, now + request.ttl);
                            }
                            decision
                        }
                        Verdict::Granted(grant) if apply => {
                            holds.sweep(now);
                            grant.apply(holds, None)
                        }
                        Verdict::Granted(_) => Holds::peek(Some(holds), now, &request),
                    };
                    let of = Reserved::Hold { id: id.clone().into(), token: decision.token };
                    return (decision.granted, six(decision), Some(of));
                }
                let demand = member(&clause[1..]);
                let entry = server.keys.entry(key.clone()).or_default();
                let looked = Entry::peek(Some(entry), now, &demand).unwrap();
                if kept.is_some() {
                    return (demand.cost, five(swlimit_window::Decision { granted: demand.cost, ..looked }), None);
                }
                match Entry::decide(Some(entry), now, &demand).unwrap() {
                    swlimit_window::Verdict::Granted(units) if apply => {
                        let of = Reserved::Rate {
                            instant: units.instant(),
                            geometry: demand.quota.geometry,
                            warms_up: demand.warm_up.is_some(),
                        };
                        let decision = units.apply(entry);
                        *server.counted.entry(key.clone()).or_default() += demand.cost;
                        changed.push(key.clone());
                        (decision.granted, five(decision), Some(of))
                    }
                    _ => (looked.granted, five(looked), None),
                }
            };
            members.iter().map(one).collect()
        };
        let looked = each(self, false);
        let is_granted = looked.iter().all(|(granted, ..)| *granted > 0);
        let taken = if is_granted { each(self, true) } else { looked };
        if let Some((key, id)) = first.filter(|_| is_granted && kept.is_none()) {
            let others = members.iter().zip(&taken).filter(|((at, ..), _)| words[*at] != key);
            let reserved = others.map(|((at, _, clause), (.., of))| Reservation {
                key: KeyDigest::of(&words[*at]),
                units: clause[4].parse().unwrap(),
                of: of.clone().unwrap(),
            });
            self.holds.get_mut(&key).unwrap().reserve(&id, reserved.collect());
        }
        let replies = taken.into_iter().map(|(_, reply, _)| reply);
        Reply::Array([Reply::Integer(is_granted.into())].into_iter().chain(replies).collect())
    }

    /// `SETTLE numkeys key [key …] id used [used …]`
    pub fn settle(&mut self, text: &[String], words: &[Vec<u8>], now: u64, changed: &mut Vec<Vec<u8>>) -> Reply {
        let count: usize = text[1].parse().unwrap();
        let (keys, id) = (&words[2..2 + count], &words[2 + count]);
        let holds = self.holds.entry(keys[0].clone()).or_default();
        holds.sweep(now);
        let Some(hold) = holds.release(id) else { return Reply::Array(vec![Reply::Integer(0)]) };
        changed.extend(keys.iter().cloned());
        let named: Vec<_> = keys[1..].iter().map(|key| KeyDigest::of(key)).collect();
        assert_eq!(hold.reserved().iter().map(|one| one.key).collect::<Vec<_>>(), named, "keys of the reservation");
        let used = text[3 + count..].iter().map(|used| used.parse::<u64>().unwrap());
        let changes = hold.reserved().iter().zip(&keys[1..]).zip(used).map(|((reserved, key), used)| {
            let (unused, beyond) = (reserved.units.saturating_sub(used), used.saturating_sub(reserved.units));
            match &reserved.of {
                Reserved::Rate { instant, geometry, warms_up } => {
                    let entry = self.keys.entry(key.clone()).or_default();
                    if beyond > 0 {
                        let quota = swlimit_window::Quota { limit: 0, geometry: *geometry };
                        let request = swlimit_window::Request {
                            quota,
                            cost: beyond,
                            partial: false,
                            strict: false,
                            warm_up: WarmUp::new(1, WarmUp::COLD).filter(|_| *warms_up),
                        };
                        let Ok(Recording::Counted(record)) = Entry::record(Some(entry), now, None, &request) else {
                            return 0;
                        };
                        let _ = record.apply(entry);
                        *self.counted.entry(key.clone()).or_default() += beyond;
                        return beyond as i64;
                    }
                    let given = entry.refund(unused, Some(now.saturating_sub(*instant)), now);
                    *self.returned.entry(key.clone()).or_default() += given;
                    -(given as i64)
                }
                Reserved::Hold { id, token } => {
                    let holds = self.holds.entry(key.clone()).or_default();
                    let same = holds.get(id, now).is_some_and(|hold| hold.token() == *token);
                    -(same.then(|| holds.release(id)).flatten().map_or(0, |hold| hold.units()) as i64)
                }
                Reserved::Budget { .. } => 0,
            }
        });
        Reply::Array([Reply::Integer(1)].into_iter().chain(changes.map(Reply::Integer)).collect())
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
