"""Random commands on holds and budgets, with the model's answers."""

import random
from copy import deepcopy

from .bounds import MAX, MAX_WINDOW, T
from .commands import spelled_rise
from .holding import Budget, Holds, Refused, admit, cost_of, settle
from .model import Key

HOUR = 3_600_000
SOON = 10 * 60_000  # what ends so soon might expire by the real clock while a test runs


class HoldingWorkload:
    """A random sequence of commands for some keys, with the model's answers; a `Refused` is an error."""

    keys_of = ["hold"] * 5 + ["budget"] * 3 + ["rate"] * 3
    often = {"hold": 6, "release": 3, "renew": 2, "holders": 2, "budget": 4, "refund": 2, "admit": 6, "settle": 3}
    window = 6 * HOUR, HOUR

    def __init__(self, seed, start=T):
        self.random = random.Random(seed)
        self.now = start
        models = {"hold": Holds, "budget": Budget, "rate": Key}
        self.keys = {f"{{h}}{kind}:{self.keys_of[:place].count(kind)}": models[kind]()
                     for place, kind in enumerate(self.keys_of)}
        self.admitted = []

    def next(self):
        """A command's words, and the reply that is expected."""
        self.now += self.random.choice([0, 1, 1, 500, HOUR // 60, HOUR // 9, -1, -HOUR // 50])
        before = deepcopy(self.keys)
        words, expected = self._step()
        for key, after in self.keys.items():
            if after.end != before[key].end and 0 < after.end - self.now < SOON:
                self.keys = before
                return self._look()
        return words, expected

    def _look(self):
        """A command that changes nothing."""
        if "hold" in self.keys_of:
            key = self._key("hold")
            return ["SWLIMIT.HOLDERS", key, "AT", self.now], self.keys[key].holders(self.now)
        key, until = self._key("budget"), self.now + HOUR
        words = ["SWLIMIT.BUDGET", key, 0, until, "AT", self.now]
        return words, self.keys[key].budget(0, until, self.now, 1)

    def _step(self):
        kinds = [kind for kind, times in self.often.items() for _ in range(times)]
        return getattr(self, f"_{self.random.choice(kinds)}")()

    def _key(self, kind):
        return self.random.choice([key for key in self.keys if kind in key])

    def _id(self):
        return self.random.choice(["a", "b", "at", "token", "x" * 128]) + str(self.random.randrange(4)) if (
            self.random.random() < 0.8) else str(self.random.randrange(30))

    def _ids(self):
        return [self._id()[:128] for _ in range(self.random.choice([1, 1, 2, 4]))]

    def _ttl(self):
        return self.random.choice([HOUR // 3, HOUR, self.random.randint(HOUR // 3, 3 * HOUR)])

    def _run(self, words, answer):
        try:
            return words, answer()
        except Refused as refused:
            return words, refused

    def _hold(self):
        key, id, ttl = self._key("hold"), self._id()[:128], self._ttl()
        cost = self.random.choice([1, 1, 1, 2, 5])
        limit = self.random.choice([0, 1, 3, 10, self.random.randint(1, 20), MAX])
        options = [["COST", cost]] if cost > 1 or self.random.random() < 0.2 else []
        options.append(["AT", self.now])
        self.random.shuffle(options)
        words = ["SWLIMIT.HOLD", key, limit, f"{ttl}ms", id, *sum(options, [])]
        return self._run(words, lambda: self.keys[key].hold(limit, ttl, id, self.now, cost))

    def _release(self):
        key, ids = self._key("hold"), self._ids()
        return ["SWLIMIT.RELEASE", key, *ids, "AT", self.now], self.keys[key].release(ids, self.now)

    def _renew(self):
        key, ids, ttl = self._key("hold"), self._ids(), self._ttl()
        return ["SWLIMIT.RENEW", key, f"{ttl}ms", *ids, "AT", self.now], self.keys[key].renew(ttl, ids, self.now)

    def _holders(self):
        key, count = self._key("hold"), self.random.choice([1, 2, 50])
        return ["SWLIMIT.HOLDERS", key, count, "AT", self.now], self.keys[key].holders(self.now, count)

    def _budget(self):
        key, limit = self._key("budget"), self.random.choice([0, 5, 30, 100, MAX])
        until = self.now + self.random.choice([HOUR, 24 * HOUR, HOUR, MAX_WINDOW, MAX_WINDOW + 1, 0, -1])
        cost = self.random.choice([1, 2, 7, limit or 1, 31, MAX])
        flags = self.random.choice([[], [], ["PARTIAL"], ["FORCE"]])
        words = ["SWLIMIT.BUDGET", key, limit, until, "COST", cost, *flags, "AT", self.now]
        model = {flag.lower(): True for flag in flags}
        return self._run(words, lambda: self.keys[key].budget(limit, until, self.now, cost, **model))

    def _refund(self):
        key, units = self._key("budget"), self.random.choice([1, 3, 40])
        age = self.random.choice([None, None, 0, 1_000, HOUR])
        option = [] if age is None else ["AGE", f"{age}ms"]
        return ["SWLIMIT.REFUND", key, units, *option, "AT", self.now], self.keys[key].refund(units, self.now, age)

    def _clause(self, key):
        limit = self.random.choice([3, 10, 40, MAX])
        cost = self.random.choice([1, 1, 2, 5])
        if "hold" in key:
            return ["HOLD", limit, self._ttl(), self._id()[:128], cost]
        if "rate" in key:
            return ["RATE", limit, *self.window, cost]
        return ["BUDGET", limit, self.now + self.random.choice([HOUR, 5 * HOUR]), cost]

    def _admit(self):
        if self.admitted and self.random.random() < 0.4:  # once more, perhaps changed
            clauses = deepcopy(self.random.choice(self.admitted[-8:]))
            if self.random.random() < 0.2:
                key, clause = self.random.choice(clauses)
                clause[3 if clause[0] == "BUDGET" else 4] += 1
            for _, clause in clauses:
                if clause[0] == "BUDGET":
                    clause[2] = self.now + HOUR
        else:
            keys = self.random.sample(list(self.keys), self.random.choice([1, 2, 3, 4]))
            clauses = [(key, self._clause(key)) for key in keys]
        self.admitted.append(clauses)
        spelled = [[f"{word}ms" if (clause[0], place) in DURATIONS else word for place, word in enumerate(clause[:5])]
                   + spelled_rise(*clause[5:]) for _, clause in clauses]
        words = ["SWLIMIT.ADMIT", len(clauses), *(key for key, _ in clauses), *sum(spelled, []), "AT", self.now]
        return self._run(words, lambda: admit(self.keys, clauses, self.now))

    def _settle(self):
        if not self.admitted:
            return self._admit()
        clauses = self.random.choice(self.admitted[-8:])
        first = next(((key, clause) for key, clause in clauses if clause[0] == "HOLD"), None)
        if not first:
            return self._admit()
        others = [(key, clause) for key, clause in clauses if key != first[0]]
        if self.random.random() < 0.1:
            others = others[1:]
        used = [0 if clause[0] == "HOLD" else max(0, cost_of(clause) + self.random.choice([0, 0, -1, -5, 1, 3]))
                for _, clause in others]
        names, id = [first[0], *(key for key, _ in others)], first[1][3]
        words = ["SWLIMIT.SETTLE", len(names), *names, id, *used, "AT", self.now]
        return self._run(words, lambda: settle(self.keys, names, id, used, self.now))


class RisingAdmissions(HoldingWorkload):
    """Mostly of rates that rise: also of those that are out of use when they are settled."""

    keys_of = ["hold"] * 2 + ["budget"] + ["rate"] * 4
    often = {"hold": 1, "release": 1, "admit": 8, "settle": 8, "refund": 2}
    window = HOUR // 2, HOUR // 4

    def _clause(self, key):
        clause = super()._clause(key)
        if clause[0] == "RATE" and self.random.random() < 0.8:
            clause += [self.random.choice([HOUR, 6 * HOUR, 600 * HOUR]), self.random.choice([3, 3, 2, 1_000])]
        return clause

    def _refund(self):
        """Of a rate, and mostly of all its units."""
        key, units = self._key("rate"), self.random.choice([1, MAX, MAX])
        return ["SWLIMIT.REFUND", key, units, "AT", self.now], self.keys[key].refund(units, self.now)


DURATIONS = {("HOLD", 2), ("RATE", 2), ("RATE", 3)}


def answers(server, commands):
    """What a server answers to commands; errors as `Refused`."""
    with server.client(decode_responses=True) as client:
        pipeline = client.pipeline(transaction=False)
        for words in commands:
            pipeline.execute_command(*words)
        replies = pipeline.execute(raise_on_error=False)
    return [Refused(str(reply)) if isinstance(reply, Exception) else reply for reply in replies]
