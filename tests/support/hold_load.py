"""Holders that keep accounts: never more live than the limit, growing tokens, nothing held for longer than its ttl."""

import threading
import time
import uuid
from dataclasses import dataclass

from .load import Workers
from .waiting import eventually


@dataclass
class Held:
    """A hold that was acknowledged: until when its holder relies on it, and its token."""

    key: str
    id: str
    until: float
    token: int


class HoldLoad(Workers):
    """Workers that take, renew and release holds of keys. One hold in eight is never released: its holder died. The
    dead leave a place of each key to the living, who else would do nothing for a whole ttl.

    Each checks, whenever a hold is granted, that those on which holders rely are no more than the limit, and that its
    token is larger than all that were known when it was asked for. With `wait`, a grant is acknowledged once a replica
    has it. `ttl` is in seconds.
    """

    PATIENCE = 60

    def __init__(self, connect, keys, limit=4, ttl=2.0, threads=6, wait=False, seed=1):
        super().__init__(connect, threads, endure=True, seed=seed)
        self.keys, self.limit, self.ttl, self.wait = keys, limit, ttl, wait
        self.lock = threading.Lock()
        self.live = {key: {} for key in keys}
        self.tokens = dict.fromkeys(keys, 0)
        self.granted = 0

    def progress(self):
        """How many holds were granted."""
        return self.granted

    def relied_on(self, key):
        """The holds of a key on which their holders rely now."""
        with self.lock:
            now = time.monotonic()
            return [held for held in self.live[key].values() if now < held.until]

    def work(self, client, chance, number):
        self._hold(client, chance, chance.choice(self.keys))

    def _hold(self, client, chance, key):
        id, ttl = uuid.uuid4().hex, f"{round(self.ttl * 1000)}ms"
        known, sent = self.tokens[key], time.monotonic()
        granted, *_, token = client.execute_command("SWLIMIT.HOLD", key, self.limit, ttl, id)
        if not granted:
            self.stopping.wait(0.001)
            return
        if not self._is_confirmed(client, key):
            client.execute_command("SWLIMIT.RELEASE", key, id)
            return
        self._acknowledge(Held(key, id, sent + self.ttl * 0.999, token), known)
        if chance.random() < 0.3:
            sent = time.monotonic()
            if client.execute_command("SWLIMIT.RENEW", key, ttl, id) == [1] and self._is_confirmed(client, key):
                self.live[key][id].until = sent + self.ttl * 0.999
        if chance.random() < 1 / 8 and len(self.relied_on(key)) < self.limit:
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
    """Who is dead leaves: the whole limit is free again, once all have ended."""
    for key in load.keys:
        free = ("SWLIMIT.HOLD", key, load.limit, "1m", "all", "COST", load.limit, "WAIT", "30s")
        assert client_of(key).execute_command(*free)[0] == load.limit


def crash(load, server):
    """kill -9 under load, three times; the load goes on with the server that starts again."""
    for _ in range(3):
        load.reach(300)
        server.kill()
        eventually(lambda: load.failures)
        server.start()
        load.failures.clear()
    load.reach(300)


def one_more_fits(load, client):
    """A limit of one more than are live has room for one, whose token is larger than all before it."""
    for key in load.keys:
        live = len(client.execute_command("SWLIMIT.HOLDERS", key, 10_000))
        granted, *_, token = client.execute_command("SWLIMIT.HOLD", key, live + 1, "1s", "next")
        assert granted == 1 and (not live or token > load.tokens[key])
