"""What became of the requests: by key, in total, and over time."""

# Steps of time that people think in, in seconds; an outcome has at most STEPS of them.
STEPS = 120
STEP_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


class Tally:
    """What became of the requests of one key, or of all: how many, and how many units they asked for."""

    def __init__(self):
        self.offered = self.granted = 0
        self.offered_units = self.granted_units = 0
        self.first_denial = self.last_denial = None

    @property
    def denied(self):
        return self.offered - self.granted

    @property
    def denied_units(self):
        return self.offered_units - self.granted_units

    def add(self, request, granted):
        self.offered += 1
        self.offered_units += request.cost
        if granted:
            self.granted += 1
            self.granted_units += request.cost
        else:
            self.first_denial = request.at if self.first_denial is None else self.first_denial
            self.last_denial = request.at


class Outcome:
    """The decisions, by key, in total, and over time in units per step of `step` milliseconds."""

    def __init__(self, first, last):
        """Prepare for requests from the instant `first` to the instant `last`."""
        self.total = Tally()
        self.keys = {}
        self.step = _step(last - first)
        self.start = first // self.step * self.step
        self.offered = [0] * ((last - self.start) // self.step + 1)
        self.granted = self.offered.copy()

    def add(self, request, granted):
        self.total.add(request, granted)
        self.keys.setdefault(request.key, Tally()).add(request, granted)
        step = (request.at - self.start) // self.step
        self.offered[step] += request.cost
        self.granted[step] += request.cost * granted

    def most_limited(self, count):
        """(key, tally), those with the most denied units first; alike ones by what they asked for, then by name."""
        def rank(item):
            return -item[1].denied_units, -item[1].offered_units, item[0]
        return sorted(self.keys.items(), key=rank)[:count]

    @property
    def limited(self):
        """How many keys were denied anything."""
        return sum(tally.denied > 0 for tally in self.keys.values())


def _step(span):
    """The first step that divides a span into few enough; if none does, as many whole days as it takes."""
    for step in STEP_SECONDS:
        if span < STEPS * step * 1000:
            return step * 1000
    day = STEP_SECONDS[-1] * 1000
    return -(-span // (STEPS * day)) * day
