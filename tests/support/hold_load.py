"""Holders that keep accounts: never more live than the limit, growing tokens, nothing held for longer than its ttl."""

import random
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass

import redis

from .waiting import eventually


@dataclass
class Held:
    """A hold that was acknowledged: until when its holder relies on it, and its token."""

    key: str
    id: str
    until: float
    token: int


class HoldLoad:
    """Threads that take, renew and release holds of keys until told to stop. One in eight dies without releasing.

    Each checks, whenever a hold is granted, that those on which holders rely are no more than the limit, and that its
    token is larger than all that were known when it was asked for. With `wait`, a grant is acknowledged once a replica
    has it. Use as a context manager. `ttl` is in seconds.
    """

    def __init__(self, connect, keys, limit=4, ttl=2.0, threads=6, wait=False, seed=1):
        self.connect, self.keys, self.limit, self.ttl, self.wait, self.seed = connect, keys, limit, ttl, wait, seed
        self.lock, self.stopping = threading.Lock(), threading.Event()
        self.live = {key: {} for key in keys}
        self.tokens = dict.fromkeys(keys, 0)
        self.granted = 0
        self.failures, self.errors = Counter(), []
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors
        assert self.granted, f"nothing was granted; {self.failures}"

    def reach(self, grants, seconds=60):
        """Wait until so many more holds have been granted."""
        goal = self.granted + grants

        def reached():
            assert not self.errors, self.errors
            return self.granted >= goal
        eventually(reached, seconds=seconds, log=lambda: f"not {grants} more holds granted; {self.failures}")

    def relied_on(self, key):
        """The holds of a key on which their holders rely now."""
        with self.lock:
            now = time.monotonic()
            return [held for held in self.live[key].values() if now < held.until]

    def _run(self, number):
        rng, client = random.Random(self.seed * 1000 + number), None
        while not self.stopping.is_set():
            try:
                client = client or self.connect()
                self._hold(client, rng, rng.choice(self.keys))
            except (redis.RedisError, OSError) as error:
                self.failures[type(error).__name__] += 1
                client = None
                self.stopping.wait(0.01)
            except Exception as error:
                self.errors.append(error)
                return

    def _hold(self, client, rng, key):
        id, ttl = uuid.uuid4().hex, f"{round(self.ttl * 1000)}ms"
        known, sent = self.tokens[key], time.monotonic()
        granted, *_, token = client.execute_command("SWLIMIT.HOLD", key, self.limit, ttl, id)
        if not granted:
            self.stopping.wait(0.001)
            return
        if not self._is_confirmed(client, key):
            return
        self._acknowledge(Held(key, id, sent + self.ttl * 0.999, token), known)
        if rng.random() < 0.3:
            sent = time.monotonic()
            if client.execute_command("SWLIMIT.RENEW", key, ttl, id) == [1] and self._is_confirmed(client, key):
                self.live[key][id].until = sent + self.ttl * 0.999
        if rng.random() < 1 / 8:
            return  # it dies
        with self.lock:
            del self.live[key][id]
        client.execute_command("SWLIMIT.RELEASE", key, id)

    def _is_confirmed(self, client, key):
        if not self.wait:
            return True
        node = {"target_nodes": client.get_node_from_key(key)} if hasattr(client, "get_node_from_key") else {}
        return client.execute_command("WAIT", 1, 1000, **node) >= 1

    def _acknowledge(self, held, known):
        with self.lock:
            assert held.token > known, f"token {held.token} behind {known}"
            self.tokens[held.key] = max(self.tokens[held.key], held.token)
            self.live[held.key][held.id] = held
            self.granted += 1
            now = time.monotonic()
            live = [other for other in self.live[held.key].values() if now < other.until]
            assert len(live) <= self.limit, f"{len(live)} of {self.limit} holders of {held.key}"


def kept(load, client_of):
    """Each hold on which its holder still relies is held; how many."""
    count = 0
    for key in load.keys:
        relied = load.relied_on(key)
        stored = {id.decode() for id, *_ in client_of(key).execute_command("SWLIMIT.HOLDERS", key, 10_000)}
        # Those that ended while the question was asked say nothing.
        missing = {held.id for held in load.relied_on(key)} & {held.id for held in relied} - stored
        assert not missing, f"{missing} of {key}"
        count += len(relied)
    return count


def all_end(load, client_of):
    """Whoever is dead leaves: the whole limit is free again, once all have ended."""
    for key in load.keys:
        free = ("SWLIMIT.HOLD", key, load.limit, "1m", "all", "COST", load.limit, "WAIT", "30s")
        assert client_of(key).execute_command(*free)[0] == load.limit
