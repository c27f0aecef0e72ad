"""Leases keep their promise with every number of processes: z3 proves an invariant that each step keeps.

A step is one process's, and about the units of one of its grants. These are singled out; those of all other grants, in
this and in other processes, are one sum that the step leaves alone. So nothing below says how many processes there are.
Units counted by instant are a function of the instant: `cut` is any instant, so what holds at `cut` holds at each.

What the client computes is read from its source and computed here as Rust does, in numbers of 64 bits that must not
overflow. What the server and the network do is written here. The page of promises says what is assumed.
"""

import re
from types import SimpleNamespace

import pytest
from z3 import And, Bool, Function, If, Implies, Int, IntSort, Not, Or, Solver, sat, unsat

from support.server import ROOT

HOME = ROOT / "src/clients/rust/deciding/leased"
FILES = ["mod.rs", "sizing.rs", "hand/mod.rs", "together.rs", "returns.rs"]
MOST = 2**64 - 1
OVERFLOW = "numbers do not overflow"
UNITS = 2**53 - 1  # the most that a server counts

# Of one key. Counts are of what is dated at the cut or later, unless they are the grant's own.
SERVER = ["limit", "oldest", "first", "cut", "since", "counted_at_cut", "counted_at_since", "others_at_cut",
          "others_at_since", "granted", "date"]
# Where the units of the grant are: on their way with the reply, just come, come for a request that is gone, in hand,
# promised to a request that waits for them, reserved for one that other limits must grant, too, on their way back, used
# by requests, lost.
PLACES = ["coming", "landing", "late", "hand", "promised", "reserved", "returning", "used", "lost"]
PROCESS = ["now", "length", "sent", "due", "counted", "most", "largest", "flight", "claimed", "claim", "other_units",
           "other_flights", *PLACES]
NUMBERS = SERVER + PROCESS
FLAGS = ["is_counted", "is_stale", "is_used_late"]


class U64:
    """A number as Rust's u64, an Instant or a Duration; what would overflow becomes an obligation."""

    def __init__(self, value, obligations):
        self.value, self.obligations = value, obligations

    def new(self, value):
        return U64(value, self.obligations)

    def __add__(self, other):
        self.obligations.append(self.value + other.value <= MOST)
        return self.new(self.value + other.value)

    def __sub__(self, other):
        self.obligations.append(self.value >= other.value)
        return self.new(self.value - other.value)

    def saturating_add(self, other):
        return self.new(smaller(self.value + other.value, MOST))

    def saturating_sub(self, other):
        return self.new(larger(self.value - other.value, 0))

    def saturating_mul(self, number):
        return self.new(smaller(self.value * number, MOST))

    def min(self, other):
        return self.new(smaller(self.value, other.value))

    def max(self, other):
        return self.new(larger(self.value, other.value))

    def __lt__(self, other):
        return self.value < value_of(other)

    def __le__(self, other):
        return self.value <= value_of(other)

    def __gt__(self, other):
        return self.value > value_of(other)

    def __ge__(self, other):
        return self.value >= value_of(other)


def value_of(number):
    return number.value if isinstance(number, U64) else number


def smaller(one, other):
    return If(one <= other, one, other)


def larger(one, other):
    return If(one >= other, one, other)


class Rust:
    """Lines of the client, perhaps with a mistake: `(before, after)`."""

    def __init__(self, mistake=None):
        texts = [(HOME / name).read_text().partition("#[cfg(test)]\nmod tests")[0] for name in FILES]
        self.text = " ".join(" ".join(texts).split())
        if mistake:
            assert self.text.count(mistake[0]) == 1, mistake[0]
            self.text = self.text.replace(*mistake)

    def find(self, pattern):
        found = re.findall(pattern, self.text)
        assert len(found) == 1, f"the client has {len(found)} lines like {pattern}"
        return found[0]

    def compute(self, pattern, names):
        """The value of the expression that the pattern finds."""
        expression = self.find(pattern)
        for rust, python in (" || ", " | "), (" && ", " & "):
            if rust in expression:
                expression = python.join(f"({part})" for part in expression.split(rust))
        return eval(expression, {}, names)

    def run(self, pattern, names):
        """What the statement that the pattern finds makes of the names."""
        exec(self.find(pattern), {}, names)
        return names


STEPS = {}


def step(function):
    STEPS[function.__name__] = function
    return function


class Leases:
    """The steps. Each returns when it can be taken, and what it changes."""

    def __init__(self, rust=None):
        self.rust = rust or Rust()
        self.obligations = []

    def number(self, value):
        return U64(value, self.obligations)

    def terms(self, of):
        return SimpleNamespace(most=self.number(of.most), length=self.number(of.length))

    def until(self, of):
        flight = SimpleNamespace(sent=self.number(of.sent), due=self.number(of.due))
        pattern = r"pub fn until\(&self, length: Duration\) -> Instant \{ (.+?) \}"
        assert self.rust.find(r"let until = flight\.until\((.+?)\);") == "self.terms.length"
        return self.rust.compute(pattern, {"self": flight, "length": self.number(of.length)}).value

    def held(self, of):
        return of.hand + of.promised + of.reserved + of.other_units

    def flying(self, of):
        return of.flight + of.other_flights

    def is_refused(self, of, units):
        """Whether the hand returns units instead of keeping them."""
        hand = SimpleNamespace(held=lambda: self.number(self.held(of)), flying=lambda: self.number(self.flying(of)),
                               terms=self.terms(of))
        units = SimpleNamespace(units=self.number(units), until=self.number(self.until(of)))
        pattern = r"if units\.units == 0 \{ return None; \} if (.+?) \{ return Some\(units\)"
        return self.rust.compute(pattern, {"self": hand, "units": units, "now": self.number(of.now)})

    # What the server does. `held`: what it holds from the first subinterval that counts whole.

    def counts(self, of, units, date, held):
        fits = And(units > 0, held + units <= of.limit, Implies(of.cut >= of.first, of.counted_at_cut <= held))
        at = {f"counted_at_{name}": getattr(of, f"counted_at_{name}") + If(getattr(of, name) <= date, units, 0)
              for name in ("cut", "since")}
        return fits, at

    @step
    def counts_for_others(self, of, units, date, held):
        """For a client that asks for each unit."""
        fits, changes = self.counts(of, units, date, held)
        at = {f"others_at_{name}": getattr(of, f"others_at_{name}") + If(getattr(of, name) <= date, units, 0)
              for name in ("cut", "since")}
        return fits, {**changes, **at}

    @step
    def counts_a_flight(self, of, units, date, held):
        fits, changes = self.counts(of, units, date, held)
        can = And(fits, Not(of.is_counted), units <= of.flight, of.since <= date)
        return can, {**changes, "granted": units, "coming": units, "date": date, "counted": of.now, "is_counted": True}

    @step
    def counts_a_request(self, of, units, date, held):
        """A request's own units. It was sent at `sent`, and is gone."""
        assert self.rust.find(r"let \(until, server\) = \((.+?), settled") == "begun + self.length"
        fits, changes = self.counts(of, units, date, held)
        can = And(fits, Not(of.is_counted), of.flight == 0, of.since <= date)
        return can, {**changes, "granted": units, "late": units, "date": date, "counted": of.now, "is_counted": True}

    @step
    def refunds(self, of, units):
        """From the subinterval of `since` on, the oldest first; what is older than the window, not at all."""
        assert "Command::refund(&self.key, self.batch.units, Counted::Since(self.batch.since))" in self.rust.text
        assert "server.is_some() && self.batch.server.as_ref() == server" in self.rust.text
        can = And(units > 0, units <= of.returning, Not(of.is_stale))
        return can, {**self.taken_back(of, units), "returning": of.returning - units}

    def taken_back(self, of, units):
        taken = If(of.since >= of.oldest, smaller(units, of.counted_at_since), 0)
        before = larger(of.counted_at_since - of.counted_at_cut, 0)
        at_cut = If(of.cut <= of.since, taken, larger(taken - before, 0))
        return {"counted_at_cut": of.counted_at_cut - at_cut, "counted_at_since": of.counted_at_since - taken,
                "granted": of.granted - units}

    @step
    def begins_anew(self, of):
        """Without its data; what is on its way to it is lost."""
        counts = ["counted_at_cut", "counted_at_since", "others_at_cut", "others_at_since", "granted"]
        gone = dict.fromkeys([*counts, "coming", "returning", "flight", "claimed", "claim"], 0)
        return True, {**gone, "lost": of.lost + of.coming + of.returning, "is_stale": of.is_counted}

    # What happens to both.

    @step
    def time_passes(self, of, to, oldest, first):
        can = And(to >= of.now, oldest >= of.oldest, first >= of.first, Or(first == oldest, first == oldest + 1))
        return can, {"now": to, "oldest": oldest, "first": first}

    @step
    def connection_is_lost(self, of):
        """With the reply; what is executed only then counts as others' units."""
        gone = dict.fromkeys(["coming", "flight", "claimed", "claim"], 0)
        return of.flight > 0, {**gone, "lost": of.lost + of.coming}

    # What the process does.

    @step
    def sends(self, of, cost, in_hand, flying, wanted, due):
        """A flight of as many units as the demand makes of it, which may be any."""
        names = {"need": SimpleNamespace(cost=self.number(cost)), "terms": self.terms(of),
                 "in_hand": self.number(in_hand), "flying": self.number(flying), "wanted": self.number(wanted),
                 "LEAST": int(self.rust.find(r"const LEAST: u64 = (\d+);"))}
        names["least"] = self.rust.compute(r"let least = (.+?);", names)
        names["room"] = self.rust.compute(r"let room = (.+?);", names)
        is_room = self.rust.compute(r"\((room [^)]+)\)\.then\(\|\| ", names)
        units = self.rust.compute(r"\(room [^)]+\)\.then\(\|\| (.+?)\) \}", names)
        # So it is called, and so the flight begins.
        assert self.rust.find(r"= batch\((.+?)\)\?;").endswith("outliving, self.held(), flying")
        assert self.rust.find(r"let \(need, flying\) = \((.+?)\);") == "&self.demand.need, self.flying()"
        assert "sent: now, due: now + self.trip, claimed: 0" in self.rust.find(r"let flight = Flight \{ (.+?) \};")
        can = And(is_room, cost >= 1, wanted <= MOST, due >= of.now, of.flight == 0, Not(of.is_counted),
                  in_hand == self.held(of), flying == self.flying(of))
        return can, {"flight": units.value, "sent": of.now, "due": due, "claimed": 0, "claim": 0}

    @step
    def hears(self, of, most):
        """Which limit is in force, and so what it may have: no more than its share of the whole limit."""
        assert "(self.terms, self.trip) = (terms, trip)" in self.rust.text
        assert "Terms { length: self.length, most: self.share.units(limit), limit }" in self.rust.text
        return most <= of.largest, {"most": most}

    @step
    def promises(self, of, cost):
        flight = SimpleNamespace(units=self.number(of.flight), claimed=self.number(of.claimed), due=self.number(of.due))
        names = {"flight": flight, "ask": SimpleNamespace(cost=self.number(cost)), "now": self.number(of.now)}
        can = self.rust.compute(r"let is_free = \|flight: &&mut Flight\| (.+?);", names)
        self.rust.run(r"find\(is_free\)\?; (.+?); let flight = flight\.number", names)
        return And(can, cost <= MOST), {"claimed": flight.claimed.value, "claim": cost}

    @step
    def gives_up_a_promise(self, of):
        flight = SimpleNamespace(claimed=self.number(of.claimed))
        names = {"flight": flight, "cost": self.number(of.claim)}
        self.rust.run(r"for_each\(\|flight\| (flight\.claimed .+?)\);", names)
        return of.claim > 0, {"claimed": flight.claimed.value, "claim": 0}

    @step
    def lands(self, of):
        changes = dict.fromkeys(["coming", "flight", "claimed", "claim"], 0)
        return And(of.flight > 0, of.is_counted), {**changes, "landing": of.landing + of.coming}

    @step
    def serves(self, of, cost):
        """A request that waits gets what came. The server granted it, as if it had come there itself."""
        units, claim = SimpleNamespace(units=self.number(of.landing)), SimpleNamespace(cost=self.number(cost))
        names = {"units": units, "claim": claim}
        can = self.rust.compute(r"claim\.state = match (.+?) \{", names)
        before = len(self.obligations)
        self.rust.run(r"true => \{ (.+?); State::Granted", names)
        self.obligations[before:] = [Implies(can, must) for must in self.obligations[before:]]
        return And(can, cost > 0), {"landing": units.units.value, "promised": of.promised + cost}

    @step
    def keeps(self, of):
        """What came, and nobody waits for."""
        return self.kept_or_returned(of, "landing", of.landing)

    @step
    def keeps_what_is_late(self, of):
        return self.kept_or_returned(of, "late", of.late)

    @step
    def gives_up_promised(self, of, units):
        return self.kept_or_returned(of, "promised", units)

    @step
    def gives_up_reserved(self, of, units):
        return self.kept_or_returned(of, "reserved", units)

    def kept_or_returned(self, of, place, units):
        left = {place: getattr(of, place) - units}
        is_refused = self.is_refused(SimpleNamespace(**{**vars(of), **left}), units)
        return And(units > 0, left[place] >= 0), {**left, "hand": If(is_refused, of.hand, of.hand + units),
                                                  "returning": If(is_refused, of.returning + units, of.returning)}

    @step
    def returns_too_few(self, of):
        """They would lie idle."""
        return of.landing > 0, {"landing": 0, "returning": of.returning + of.landing}

    def drawn(self, of, cost):
        """Units in hand, for a request of this cost: whether they may be taken, what stays, and how many are taken."""
        batch = SimpleNamespace(units=self.number(of.hand), until=self.number(self.until(of)))
        names = {"batch": batch, "left": self.number(cost), "now": self.number(of.now)}
        can = self.rust.compute(r"iter_mut\(\)\.filter\(\|batch\| (.+?)\) \{ let taken", names)
        names["taken"] = self.rust.compute(r"let taken = (.+?);", names)
        self.rust.run(r"let taken = .+?; (.+?); left", names)
        self.rust.run(r"let taken = .+?; .+?; (left .+?);", names)
        return And(can, cost > 0), batch.units.value, names["taken"].value

    def is_late(self, of):
        return Or(of.is_used_late, of.now >= of.counted + of.length)

    @step
    def uses(self, of, cost):
        can, hand, taken = self.drawn(of, cost)
        return can, {"hand": hand, "used": of.used + taken, "is_used_late": self.is_late(of)}

    @step
    def uses_promised(self, of, units):
        return And(units > 0, units <= of.promised), {"promised": of.promised - units, "used": of.used + units}

    @step
    def reserves(self, of, cost):
        can, hand, taken = self.drawn(of, cost)
        return can, {"hand": hand, "reserved": of.reserved + taken}

    @step
    def uses_reserved(self, of, units):
        names = {"until": self.number(self.until(of)), "now": self.number(of.now)}
        is_in_time = self.rust.compute(r"Some\(Standing::Granted \{ until \}\) if (.+?)\) \};", names)
        can = And(is_in_time, units > 0, units <= of.reserved)
        return can, {"reserved": of.reserved - units, "used": of.used + units, "is_used_late": self.is_late(of)}

    @step
    def ends(self, of):
        """At its time, or when the client is closed."""
        return of.hand > 0, {"hand": 0, "returning": of.returning + of.hand}

    @step
    def writes_off(self, of, units):
        return And(units > 0, units <= of.returning), {"returning": of.returning - units, "lost": of.lost + units}


def state():
    return SimpleNamespace(**{name: Int(name) for name in NUMBERS}, **{name: Bool(name) for name in FLAGS})


def invariant(of, leases):
    """Its clauses."""
    placed = sum(getattr(of, place) for place in PLACES)
    stays, falls = [], []
    for name in ("cut", "since"):
        granted = If(getattr(of, name) <= of.date, of.granted, 0)
        needed = getattr(of, f"others_at_{name}") + granted
        stays.append(Implies(getattr(of, name) >= of.oldest, getattr(of, f"counted_at_{name}") >= needed))
    for at_cut, at_since in [(of.counted_at_cut, of.counted_at_since), (of.others_at_cut, of.others_at_since)]:
        falls.append(If(of.cut <= of.since, at_cut >= at_since, at_cut <= at_since))
    return {
        "what is counted and not given back stays counted": And(*stays),
        "the limit holds": Implies(of.cut >= of.first, of.counted_at_cut <= of.limit),
        "each unit that was granted is in one place": of.granted == If(of.is_stale, 0, placed),
        "units count no earlier than they are dated": Implies(of.is_counted, of.since <= of.date),
        "units end in time":
            Implies(of.is_counted, And(leases.until(of) <= of.counted + of.length, of.counted <= of.now)),
        "none is used after its time": Not(of.is_used_late),
        "in hand and on its way is no more than the share":
            And(leases.held(of) + of.landing + leases.flying(of) <= of.largest, of.most <= of.largest),
        "no more comes than was asked for, or is promised":
            And(of.coming <= of.flight, of.claimed <= of.flight, of.claim <= of.claimed),
        "numbers are what they count": And(
            *falls, *(getattr(of, name) >= 0 for name in NUMBERS), of.largest <= UNITS, of.limit <= UNITS,
            of.late <= UNITS, of.now + of.length <= MOST, of.due + of.length <= MOST, of.sent <= of.now,
            Or(of.first == of.oldest, of.first == of.oldest + 1),
            Implies(Not(of.is_counted), And(placed == 0, of.granted == 0, Not(of.is_stale)))),
    }


def taken(leases, name):
    """A step from any state that has the invariant: a solver that knows both, the state after it, and obligations."""
    before = state()
    leases.obligations.clear()
    function = STEPS[name]
    words = function.__code__.co_varnames[2:function.__code__.co_argcount]
    can, changes = getattr(leases, name)(before, *(Int(f"its_{word}") for word in words))
    musts = list(leases.obligations)
    after = SimpleNamespace(**{**vars(before), **changes})
    solver = Solver()
    if name not in ("serves", "keeps", "returns_too_few"):
        solver.add(before.landing == 0)  # what came is shared out under one lock
    solver.add(*invariant(before, leases).values(), can, *(Int(f"its_{word}") >= 0 for word in words))
    # No clock runs for 2^64 ns.
    solver.add(after.now + after.length <= MOST, after.due + after.length <= MOST)
    return solver, after, musts


def is_proved(solver, claim):
    solver.push()
    solver.add(Not(claim))
    outcome = solver.check()
    solver.pop()
    assert outcome in (sat, unsat), f"{outcome}: {claim}"
    return outcome == unsat


def broken(leases, names=None):
    """The clauses that a step does not keep."""
    found = set()
    for name in names or STEPS:
        solver, after, musts = taken(leases, name)
        clauses = {**invariant(after, leases), OVERFLOW: And(*musts)}
        found |= {clause for clause, holds in clauses.items() if not is_proved(solver, holds)}
    return found


def test_a_key_that_nobody_asked_for_has_it():
    of, leases = state(), Leases()
    clauses = invariant(of, leases)
    solver = Solver()
    zero = {*NUMBERS} - {"limit", "most", "largest", "now", "length", "oldest", "first", "cut", "since"}
    solver.add(clauses["numbers are what they count"], *(getattr(of, name) == 0 for name in zero))
    solver.add(of.most <= of.largest, *(Not(getattr(of, name)) for name in FLAGS))
    assert solver.check() == sat
    assert is_proved(solver, And(*clauses.values()))


@pytest.mark.parametrize("name", STEPS)
def test_each_step_keeps_it(name):
    assert broken(Leases(), [name]) == set()
    assert taken(Leases(), name)[0].check() == sat, "it is never taken"


def test_limits_hold_at_every_instant():
    """For all processes together: what was granted by what the server counts now, and is not given back."""
    of = state()
    solver = Solver()
    solver.add(*invariant(of, Leases()).values(), of.cut == of.first)
    assert is_proved(solver, of.others_at_cut + If(of.cut <= of.date, of.granted, 0) <= of.limit)


def is_spanned(is_strict, span):
    """Whether all units that are used in such a span are among those that the server counts when it counts the last.

    They are used from `begin` on, each less than T after it was counted."""
    window, resolution, length, subintervals = (Int(name) for name in ("W", "R", "T", "N"))
    begin, used, counted, last_used, last = (Int(name) for name in ("begin", "used", "counted", "last_used", "last"))
    of = Function("subinterval", IntSort(), IntSort())
    solver = Solver()
    for use, count in [(used, counted), (last_used, last)]:
        solver.add(begin <= use, use < begin + span(window, resolution, length), count <= use, use < count + length)
    solver.add(resolution > 0, length > 0, counted <= last)
    # A window is N subintervals.
    first = last - window if is_strict else last - window + resolution
    oldest = of(last) - subintervals + (0 if is_strict else 1)
    solver.add(of(first) == oldest, Implies(first <= counted, of(first) <= of(counted)))
    return is_proved(solver, of(counted) >= oldest)


def test_no_span_sees_more_than_the_limit():
    assert is_spanned(True, lambda window, resolution, length: window - length)
    assert is_spanned(False, lambda window, resolution, length: window - resolution - length)
    # The page promises no longer ones.
    assert not is_spanned(True, lambda window, resolution, length: window)
    assert not is_spanned(False, lambda window, resolution, length: window - resolution)


def test_no_other_line_of_the_hand_moves_units():
    lines = re.findall(r"[\w.]+\.(?:units|claimed) (?:[-+*/]?=) [^;,)]+", Rust().text)
    assert sorted(lines) == ["batch.units += units.units", "batch.units -= taken", "flight.claimed += ask.cost",
                             "flight.claimed -= cost", "units.units -= claim.cost"]


# Lines of the client, and what they could be by mistake.
MISTAKES = {
    "a batch is as large as is wanted": ("wanted.max(least).min(room)", "wanted.max(least)"),
    "units on their way take no room": ("in_hand.saturating_add(flying)", "in_hand"),
    "units in hand take no room": ("in_hand.saturating_add(flying)", "flying"),
    "what is kept needs no room": (" || self.held() + self.flying() + units.units > self.terms.most", ""),
    "what is kept forgets what is on its way": ("self.held() + self.flying() + units", "self.held() + units"),
    "units are promised to all": ("flight.units - flight.claimed >= ask.cost", "flight.units >= ask.cost"),
    "a promise is not noted": ("flight.claimed += ask.cost", "flight.claimed = flight.claimed"),
    "a promise is given up twice": ("flight.claimed -= cost", "flight.claimed = flight.claimed - cost - cost"),
    "who waits gets more than came": ("match claim.cost <= units.units", "match claim.cost >= units.units"),
    "what is promised stays in hand": ("units.units -= claim.cost", "units.units = units.units"),
    "what is used stays in hand": ("batch.units -= taken", "batch.units = batch.units"),
    "more is taken than is there": ("left.min(batch.units)", "left"),
    "units never end": ("now < batch.until && batch.units > 0", "batch.units > 0"),
    "units end late": ("now < batch.until && batch.units > 0", "now <= batch.until && batch.units > 0"),
    "reserved units end late": ("if now < until)", "if now <= until)"),
    "units end by when they were expected": ("self.sent + length", "self.due + length"),
}


class TakesTheNewest(Leases):
    """REFUND with SINCE takes the newest units first."""

    def taken_back(self, of, units):
        at_cut = smaller(units, of.counted_at_cut)
        return {**super().taken_back(of, units), "counted_at_cut": of.counted_at_cut - at_cut}


class TakesWhatIsTooOld(Leases):
    """Units that have slid out of the window take others' along."""

    def taken_back(self, of, units):
        return super().taken_back(SimpleNamespace(**{**vars(of), "oldest": 0}), units)


class GrantsMoreThanTheLimit(Leases):
    def counts(self, of, units, date, held):
        return super().counts(SimpleNamespace(**{**vars(of), "limit": of.limit + 1}), units, date, held)


class GrantsMoreThanIsAskedFor(Leases):
    def counts_a_flight(self, of, units, date, held):
        return super().counts_a_flight(SimpleNamespace(**{**vars(of), "flight": of.flight + 1}), units, date, held)


class DatesByTheReply(Leases):
    def counts_a_flight(self, of, units, date, held):
        return super().counts_a_flight(SimpleNamespace(**{**vars(of), "since": 0}), units, date, held)


class RefundsTwice(Leases):
    def refunds(self, of, units):
        can, changes = super().refunds(of, units)
        return can, {**changes, "returning": of.returning}


class RefundsToAnyServer(Leases):
    def refunds(self, of, units):
        return super().refunds(SimpleNamespace(**{**vars(of), "is_stale": False}), units)


class KeepsWhatHasEnded(Leases):
    def ends(self, of):
        can, changes = super().ends(of)
        return can, {**changes, "hand": of.hand}


OTHER_MISTAKES = [TakesTheNewest, TakesWhatIsTooOld, GrantsMoreThanTheLimit, GrantsMoreThanIsAskedFor, DatesByTheReply,
                  RefundsTwice, RefundsToAnyServer, KeepsWhatHasEnded]


def test_mistakes_are_found_and_break_each_clause():
    found = {mistake: broken(Leases(Rust(change))) for mistake, change in MISTAKES.items()}
    found |= {kind.__name__: broken(kind()) for kind in OTHER_MISTAKES}
    assert [mistake for mistake, clauses in found.items() if not clauses] == []
    assert set().union(*found.values()) == {*invariant(state(), Leases()), OVERFLOW}
    counts = f"{len(MISTAKES)} mistakes in these lines and {len(OTHER_MISTAKES)} in the steps around them"
    assert counts in " ".join((ROOT / "docs/understand/promises.md").read_text().split())
