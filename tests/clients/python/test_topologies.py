"""Clients of clusters, behind sentinels, over TLS and on sockets of the file system."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import redis
from redis.crc import key_slot

import swlimit
from support.cluster import Cluster
from support.contents import info
from support.replication import in_step
from support.sentinel import watched
from support.tls import encrypted
from support.waiting import eventually
from swlimit._protocol.script_fallback import TakenOver
from swlimit._transport.sentinels import Sentinels
from swlimit._transport.server_health import ServerHealth
from swlimit._transport.topology import Cluster as ClusterOfClient


def uses_all(limiter, server_of, keys="abcd"):
    """Decide, be denied here, notice what comes back, and wait, on a few keys."""
    eventually(lambda: limiter.peek(keys[0]).source == "server")
    failed = limiter.statistics.failure
    for key in keys:
        assert [limiter.allow(key).granted for _ in range(3)] == [1, 1, 0]
        eventually(lambda: limiter.allow(key).source == "cache")
        assert server_of(key).cli("-c", "SWLIMIT.REFUND", key, 1) == "1"
        eventually(lambda: limiter.allow(key).granted)
        assert limiter.refund(key) == 1
        assert limiter.acquire(key, timeout=5)
        assert not limiter.acquire(key, timeout=1)
    assert limiter.statistics.failure == failed


@pytest.fixture(scope="module")
def cluster(starting):
    with starting() as start:
        yield Cluster(start)


def test_clusters(kind, limiter, cluster):
    for server in cluster.masters():
        server.cli("FLUSHALL", "SYNC")
    client = kind.client(kind.cluster, host="127.0.0.1", port=cluster.masters()[0].port)
    one = limiter(2, "1h", "1m", client=client, max_untracked_age=0.0)
    uses_all(one, lambda key: cluster.masters()[0])
    other = limiter(1, "1h", "1m", client=client)
    assert kind.allow_all(one.request("{t}:1"), other.request("{t}:2"))
    assert not kind.allow_all(one.request("{t}:1"), other.request("{t}:2"))
    with pytest.raises(swlimit.RefusedError, match="same hash tag, such as"):
        kind.allow_all(one.request("x"), one.request("y"))
    with pytest.raises(swlimit.RefusedError, match="a key with a brace needs one"):
        kind.admit([other.request("a}b")], max_age="1m")
    kind.call(getattr(client, "aclose", client.close))


def test_admissions_in_a_cluster(kind, limiter, cluster):
    """The reservation's key has the slot of the others, whether their names have a hash tag or not."""
    for server in cluster.masters():
        server.cli("FLUSHALL", "SYNC")
    client = kind.client(kind.cluster, host="127.0.0.1", port=cluster.masters()[0].port)
    limiter = limiter(9, "1h", "1m", client=client)
    for keys in [["plain"], ["{t}:1", "{t}:2"], ["plain", "{plain}"], ["a{"]]:
        requests = [limiter.request(key, 3) for key in keys]
        admission = eventually(lambda: kind.admit(requests, max_age="1h"))  # noqa: B023
        assert admission.each[0].source == "server"
        assert kind.call(admission.settle, *[1 for _ in keys]) == [-2 for _ in keys]
    kind.call(getattr(client, "aclose", client.close))


def test_a_cluster_whose_master_fails(kind, limiter, start):
    cluster = Cluster(start)
    client = kind.client(kind.cluster, host="127.0.0.1", port=cluster.masters()[0].port)
    limiter = limiter(2, "1h", "1m", client=client, on_failure="deny", max_untracked_age=0.0)
    limiter.allow("k", cost=2)
    eventually(lambda: limiter.allow("k").source == "cache")
    master = next(server for server in cluster.masters() if server.cli("EXISTS", "k") == "1")
    in_step(cluster.replica(master), master)
    master.kill()
    eventually(lambda: limiter.peek("k").source == "server", seconds=40)
    with cluster.connect() as other:
        eventually(lambda: other.execute_command("SWLIMIT.REFUND", "k", 1) == 1)
    eventually(lambda: limiter.allow("k").granted)
    assert not limiter.acquire("k", timeout=1)
    kind.call(getattr(client, "aclose", client.close))


def test_waiting_through_a_failover(kind, limiter, start):
    """Who waits at a master that becomes a replica goes on waiting where the key is then; a hold is renewed there."""
    cluster = Cluster(start)
    client = kind.client(kind.cluster, host="127.0.0.1", port=cluster.masters()[0].port)
    limiter = limiter(1, "4s", "100ms", client=client, on_failure="deny")
    holds = kind.hold_limiter(client, 1, "15s", timeout=5.0)
    guard = eventually(lambda: holds.hold("{k}h"))
    assert limiter.allow("k")
    master = next(server for server in cluster.masters() if server.cli("EXISTS", "k") == "1")
    replica = cluster.replica(master)
    in_step(replica, master)

    def fail_over():
        eventually(lambda: info(master, "swlimit")["swlimit_waiting"], 1)
        assert replica.cli("CLUSTER", "FAILOVER") == "OK"

    with ThreadPoolExecutor() as pool:
        failing = pool.submit(fail_over)
        assert limiter.acquire("k", timeout=30).granted
        failing.result()
    assert cluster.role(replica)["role"] == "master"
    renewed = int(info(replica, "swlimit")["swlimit_renewed"])
    eventually(lambda: int(info(replica, "swlimit")["swlimit_renewed"]) > renewed)
    assert guard.is_live and guard.token == holds.holders("{k}h")[0].token
    kind.call(guard.release)
    assert not guard.is_live and not holds.holders("{k}h")
    holds.close()
    kind.call(getattr(client, "aclose", client.close))


@pytest.fixture
def sentinel(start, binaries, tmp_path):
    """A sentinel, with a master and a replica."""
    return watched(start, binaries, tmp_path, "ours", ("down-after-milliseconds", 500), ("failover-timeout", 2000))


def test_sentinels(kind, limiter, sentinel):
    sentinel, master, replica = sentinel
    client = kind.call(lambda: kind.sentinel([("127.0.0.1", sentinel.port)]).master_for("ours"))
    limiter = limiter(2, "1h", "1m", client=client, on_failure="deny", max_untracked_age=0.0)
    uses_all(limiter, lambda _key: master)
    in_step(replica, master)
    master.kill()
    eventually(lambda: limiter.peek("a").source == "server", seconds=40)
    assert not limiter.allow("a")
    eventually(lambda: limiter.allow("a").source == "cache")
    assert replica.cli("SWLIMIT.REFUND", "a", 1) == "1"
    eventually(lambda: limiter.allow("a").granted)


def test_a_primary_that_does_not_know_that_it_was_replaced(kind, limiter, start, binaries, tmp_path, caplog):
    """It goes on granting, and is never told: only the sentinels know. What is under way there is in doubt."""
    sentinel, master, replica = watched(start, binaries, tmp_path, "ours", ("failover-timeout", 60_000),
                                        of_master={"rename-command": ("SLAVEOF", "")})
    client = kind.call(lambda: kind.sentinel([("127.0.0.1", sentinel.port)]).master_for("ours"))
    short = limiter(1, "50s", client=client, on_failure="deny")
    limiter = limiter(2, "1h", "1m", client=client, on_failure="deny", max_untracked_age=0.0, timeout=50)
    uses_all(limiter, lambda _key: master)
    assert short.allow("waited")
    eventually(lambda: "sub=1" in sentinel.cli("CLIENT", "LIST"))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(short.acquire, "waited", timeout=55)
        eventually(lambda: info(master, "swlimit")["swlimit_waiting"], 1)
        in_step(replica, master)
        assert master.cli("CLIENT", "PAUSE", 600_000, "WRITE") == "OK"
        in_doubt = pool.submit(limiter.allow, "b")
        eventually(lambda: "blocked_clients:2" in master.cli("INFO", "clients"))
        assert sentinel.cli("SENTINEL", "FAILOVER", "ours") == "OK"
        decided = in_doubt.result(40)
        assert (decided.granted, decided.source) == (0, "failure")
        eventually(lambda: info(replica, "swlimit")["swlimit_waiting"], 1)
        assert replica.cli("SWLIMIT.REFUND", "waited", 1) == "1"
        assert waiting.result().granted
    assert master.cli("CLIENT", "UNPAUSE") == "OK"
    uses_all(limiter, lambda _key: replica, "efgh")
    assert master.client().info("replication")["role"] == "master"
    assert [master.cli("EXISTS", key) for key in "efgh"] == ["0"] * 4
    assert limiter.servers()[0].failovers == 1
    assert f"the primary of ours is 127.0.0.1:{replica.port}, and no longer 127.0.0.1:{master.port}" in caplog.text


def test_a_sentinel_that_is_switching_says_the_new_epoch_before_the_new_address():
    """MASTER does; the address that is asked for afterwards is the new one."""
    heard = []
    sentinels = SimpleNamespace(_server=SimpleNamespace(endpoint=SimpleNamespace(name="ours")),
                                _said={}, _primary=SimpleNamespace(
                                    announced=lambda *told: heard.append(told), address=("new", 2), epoch=5))
    replies = {"MASTER": [b"ip", b"old", b"port", b"1", b"config-epoch", b"5"], "SENTINELS": [],
               "GET-MASTER-ADDR-BY-NAME": [b"new", b"2"]}

    class Asker:
        async def call(self, _sentinel, question, _name):
            return replies[question]

    asyncio.run(Sentinels._ask(sentinels, Asker(), SimpleNamespace(name="one")))
    assert heard == [("new", 2, 5)]


def test_tls(kind, limiter, start, tmp_path):
    server, port, authority, *_ = encrypted(start, tmp_path)
    client = kind.client(kind.redis, host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=str(authority))
    uses_all(limiter(2, "1h", "1m", client=client, max_untracked_age=0.0), lambda _key: server)


def test_sockets_of_the_file_system(kind, limiter, start, tmp_path):
    server = start(options={"unixsocket": tmp_path / "s"})
    client = kind.client(kind.redis, unix_socket_path=str(tmp_path / "s"))
    uses_all(limiter(2, "1h", "1m", client=client, max_untracked_age=0.0), lambda _key: server)


def test_what_the_client_says_is_kept(kind, limiter, server):
    """User, database, and replies that are text."""
    server.cli("ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all")
    client = kind.client(kind.redis, port=server.port, db=3, username="shop", password="secret", decode_responses=True,
                         protocol=3)
    limiter = limiter(2, "1h", "1m", client=client, max_untracked_age=0.0)
    assert limiter.allow("k", cost=2)
    eventually(lambda: limiter.allow("k").source == "cache")
    assert server.cli("-n", 3, "SWLIMIT.REFUND", "k", 1) == "1"
    eventually(lambda: limiter.allow("k").granted)
    assert limiter.acquire("other", timeout=1)
    assert server.cli("INFO", "keyspace").count("db3:keys=2") == 1
    server.cli("ACL", "DELUSER", "shop")


def test_servers_that_leave_a_cluster():
    """They go with their trackers, once the client has learnt of it; what moved is where MOVED said."""
    nodes = {port: SimpleNamespace(name=f"h:{port}", host="h", port=port, connection_class=object,
                                   connection_kwargs={"host": "h", "port": port}) for port in (1, 2)}
    client = SimpleNamespace(get_nodes=lambda: list(nodes.values()), nodes_manager=SimpleNamespace(
        slots_cache={slot: [nodes[1 + slot % 2]] for slot in range(16384)}, remap_host_port=lambda *address: address))
    cluster = ClusterOfClient(client, lambda endpoint: ServerHealth(endpoint, "auto", TakenOver()))
    key = b"k"
    slot = key_slot(key)
    before = cluster.of(key)
    moved = cluster.redirected(redis.exceptions.MovedError(f"{slot} h:3"))
    assert (moved.endpoint.name, moved.endpoint.connection_kwargs["port"]) == ("h:3", 3)
    assert cluster.of(key) is moved and moved is not before
    nodes[3] = SimpleNamespace(**vars(nodes[1]) | {"name": "h:3", "port": 3})
    del nodes[1 + slot % 2]
    client.nodes_manager.slots_cache[slot] = [nodes[3]]
    assert cluster.refreshed() == [before]
    assert cluster.of(key) is moved
    with pytest.raises(redis.exceptions.TryAgainError):
        cluster.redirected(redis.exceptions.TryAgainError())
