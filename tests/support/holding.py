"""An independent model of holds and budgets: lists that are looked through again for each answer, and no cleverness."""

from dataclasses import dataclass, field
from typing import Any

from .model import Window

MAX = 2**53 - 1
MAX_WINDOW = 3650 * 86_400_000


class Refused(Exception):
    """The error that a command is answered with, without its code."""


@dataclass
class Hold:
    """Units that are held; instants in ms."""

    id: str
    units: int
    end: int
    token: int
    reserved: Any = None


@dataclass
class Holds:
    """What a key of the type `sw-holder` stores."""

    last: int = 0
    stored: list = field(default_factory=list)

    @property
    def end(self):
        """When nothing here matters any more; 0 for a missing key."""
        return max([hold.end for hold in self.stored] + [self.last // 1000 + 1]) if self.last else 0

    def live(self, now):
        return [hold for hold in self.stored if now < hold.end]

    def units(self, now):
        return sum(hold.units for hold in self.live(now))

    def find(self, id, now):
        return next((hold for hold in self.live(now) if hold.id == id), None)

    def look(self, limit, now, cost):
        """HOLD's six integers for a new hold, before it is held."""
        used = self.units(now)
        remaining = max(0, limit - used)
        if used + cost <= limit:
            return [cost, limit, remaining, 0, 0, 0]
        ends = sorted(hold.end for hold in self.live(now))
        retry = next((end - now for end in ends if self.units(end) + cost <= limit), -1) if cost <= limit else -1
        return [0, limit, remaining, retry, 0, 0]

    def hold(self, limit, ttl, id, now, cost=1, most=100_000):
        if found := self.find(id, now):
            if found.units != cost:
                raise Refused(f"id holds {found.units} units")
            self.renew(ttl, [id], now)
            return [cost, limit, max(0, limit - self.units(now)), 0, ttl, found.token]
        look = self.look(limit, now, cost)
        if not look[0]:
            return look
        if len(self.live(now)) >= most:
            raise Refused("too many holds")
        self.sweep(now)
        self.last = max(self.last + 1, now * 1000)
        self.stored.append(Hold(id, cost, now + ttl, self.last))
        return [cost, limit, limit - self.units(now), 0, ttl, self.last]

    def sweep(self, now):
        self.stored = self.live(now)

    def release(self, ids, now):
        freed = {id: self.find(id, now).units for id in ids if self.find(id, now)}
        if freed:
            self.stored = [hold for hold in self.live(now) if hold.id not in freed]
            self.forget(now)
        return sum(freed.values())

    def renew(self, ttl, ids, now):
        answer = [int(self.find(id, now) is not None) for id in ids]
        changed = [hold for hold in self.live(now) if hold.id in ids and hold.end != now + ttl]
        if changed:
            for hold in changed:
                hold.end = now + ttl
            self.sweep(now)
        return answer

    def holders(self, now, count=100):
        oldest = sorted(self.live(now), key=lambda hold: hold.token)[:count]
        return [[hold.id, hold.units, max(0, now - hold.token // 1000), hold.end - now, hold.token] for hold in oldest]

    def forget(self, now):
        """A key that is changed goes when nothing in it matters any more."""
        if self.end <= now:
            self.last, self.stored = 0, []


@dataclass
class Budget:
    """What a key of the type `sw-budget` stores."""

    used: int = 0
    since: int = 0
    until: int = 0

    @property
    def end(self):
        return self.until if self.used else 0

    def in_force(self, now):
        return self.used if now < self.until else 0

    def budget(self, limit, until, now, cost=1, partial=False, force=False):
        if not now < until <= now + MAX_WINDOW:
            raise Refused("until must be a Unix time in milliseconds after now, at most 3650 days")
        room = max(0, limit - self.in_force(now))
        granted = cost if cost <= room else room if partial else 0
        if self.in_force(now) + (cost if force else 0) > MAX:
            raise Refused("count would overflow")
        self.count(cost if force else granted, until, now)
        return self.answer(limit, cost, granted, now, partial)

    def answer(self, limit, cost, granted, now, partial=False):
        remaining, least = max(0, limit - self.in_force(now)), 1 if partial else cost
        reset_after = self.until - now if self.in_force(now) else 0
        retry_after = 0 if granted else -1 if least > limit else 0 if least <= remaining else reset_after
        return [granted, limit, remaining, retry_after, reset_after]

    def count(self, units, until, now):
        if units:
            if not self.in_force(now):
                self.used, self.since, self.until = 0, now, until
            self.used += units

    def refund(self, units, now, age=None):
        if age is not None and max(0, now - age) < self.since:
            return 0
        given = min(units, self.in_force(now))
        self.used -= given
        return given


def admit(keys, clauses, now):
    """One decision of everything, with the model of each key, and its clause: a kind and its words."""
    first = next((key for key, clause in clauses if clause[0] == "HOLD"), None)
    held = next((keys[key].find(clause[3], now) for key, clause in clauses if key == first), None)
    others = [(key, clause) for key, clause in clauses if key != first]
    asked = [(key, clause[0], cost_of(clause), clause[3] if clause[0] == "HOLD" else None) for key, clause in others]
    repeated = held is not None and held.reserved is not None
    if repeated and [entry[:4] for entry in held.reserved] != asked:
        raise Refused("id holds other reservations")
    looks = [_look(keys[key], clause, now) for key, clause in clauses]
    for (key, clause), look in zip(clauses, looks, strict=True):
        found = keys[key].find(clause[3], now) if clause[0] == "HOLD" else None
        if found and found.units != cost_of(clause):
            raise Refused(f"id holds {found.units} units")
        if repeated and clause[0] != "HOLD":
            look[0], look[3] = cost_of(clause), 0
    if not all(look[0] for look in looks):
        return [0, *(_look(keys[key], clause, now) for key, clause in clauses)]
    reply, reserved = {}, []
    for (key, clause), look in zip(clauses, looks, strict=True):
        kind, *words = clause
        if kind == "HOLD":
            limit, ttl, id, cost = words
            reply[key] = keys[key].hold(limit, ttl, id, now, cost)
        elif repeated:
            reply[key] = look
        elif kind == "RATE":
            limit, window, resolution, cost, *rise = words
            reply[key] = keys[key].allow(limit, window, resolution, now, cost, **rising(*rise))
        else:
            reply[key] = keys[key].budget(words[0], words[1], now, words[2])
        if key != first:
            known = next((entry for entry in held.reserved if entry[0] == key), None) if repeated else None
            where = _reserved(keys[key], clause, now) if kind == "HOLD" or not repeated else known[4]
            reserved.append((key, kind, cost_of(clause), clause[3] if kind == "HOLD" else None, where))
    if first:
        id = next(clause[3] for key, clause in clauses if key == first)
        keys[first].find(id, now).reserved = reserved or None
    return [1, *(reply[key] for key, _ in clauses)]


def cost_of(clause):
    return clause[4] if clause[0] in ("RATE", "HOLD") else clause[3]


def rising(warmup=None, cold=3):
    """The options of a clause whose last two words they are."""
    return {"warmup": warmup, "cold": cold}


def _look(key, clause, now):
    kind, *words = clause
    if kind == "RATE":
        limit, window, resolution, cost, *rise = words
        return key.peek(limit, window, resolution, now, cost, **rising(*rise))
    if kind == "HOLD":
        look = key.look(words[0], now, words[3])
        return [words[3], *look[1:3], 0, 0, 0] if key.find(words[2], now) else look
    limit, _, cost = words
    granted = cost if key.in_force(now) + cost <= limit else 0
    return key.answer(limit, cost, granted, now)


def _reserved(key, clause, now):
    kind, *words = clause
    if kind == "RATE":
        return key.window.decision_instant(now), *words[1:3], *words[4:5]
    return key.until if kind == "BUDGET" else key.find(words[2], now).token


def settle(keys, names, id, used, now):
    """End a hold, and count what was really used."""
    own, *others = names
    hold = keys[own].find(id, now)
    if not hold:
        return [0]
    if [entry[0] for entry in hold.reserved or []] != others:
        raise Refused("keys are not those of the reservation")
    reply = [1]
    for (key, kind, units, other, where), spent in zip(hold.reserved or [], used, strict=True):
        state, beyond = keys[key], spent - units
        if kind == "HOLD":
            found = state.find(other, now)
            reply.append(-state.release([other], now) if found and found.token == where else 0)
        elif kind == "RATE":
            instant, length, resolution, *rise = where
            if beyond > 0:
                seen = state.window.seen_at(length, resolution, now) if state.window else Window(length, resolution)
                state.record(0, length, resolution, seen.decision_instant(now), beyond, **rising(*rise))
            else:
                at = max(now, instant)
                beyond = -state.refund(-beyond, at, at - instant) if beyond else 0
            reply.append(beyond)
        else:
            if beyond > 0 and (state.in_force(now) or now < where):
                state.count(beyond, where, now)
            elif beyond < 0 and now < state.until == where:
                beyond = -state.refund(-beyond, now)
            else:
                beyond = 0
            reply.append(beyond)
    keys[own].release([id], now)
    return reply
