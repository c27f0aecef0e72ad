"""swlimitd on a cluster, where only keys of one slot are decided together."""

import pytest

from daemon.test_api import Api
from support.cluster import Cluster

LIMITS = """
domain: shop
hash_tag: tenant
descriptors:
  - {key: all, rate_limit: {unit: day, requests_per_unit: 4}}
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 3}
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 2}}
"""


@pytest.fixture
def cluster(start):
    return Cluster(start)


@pytest.fixture
def daemon(start_daemon, cluster):
    nodes = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers[:Cluster.MASTERS])
    daemon = start_daemon(LIMITS)
    daemon.stop()
    daemon.write_settings(server=f"redis-cluster://{nodes}")
    daemon.start()
    return daemon


def test_limits_of_several_slots(daemon, cluster):
    def codes(tenant, user):
        return daemon.codes("all=x", f"tenant={tenant}", f"tenant={tenant} user={user}", domain="shop")

    def counted(key):
        with cluster.connect() as client:
            fields = client.execute_command("SWLIMIT.INFO", key)
        return fields[fields.index(b"total") + 1]

    assert [codes("a", "x"), codes("a", "x")] == [("OK",) * 4] * 2
    assert codes("a", "x") == ("OVER_LIMIT", "OK", "OK", "OVER_LIMIT")
    assert codes("a", "y") == ("OK",) * 4
    # What was counted in one slot before another denied was given back.
    keys = "{shop}|all=x|1d", "shop|{tenant=a}|1d", "shop|{tenant=a}|user=x|1d", "shop|{tenant=a}|user=y|1d"
    assert [counted(key) for key in keys] == [3, 3, 2, 1]
    assert codes("b", "x") == ("OK",) * 4
    assert codes("c", "x") == ("OVER_LIMIT", "OVER_LIMIT", "OK", "OK")


def test_an_admission_of_several_slots(daemon):
    api = Api(daemon)
    user, model, rate = ({"key": f"{{a}}:{name}", "limit": 5} for name in ("user", "model", "rate"))
    user, model, rate = user | {"ttl": "1m", "id": "r1"}, model | {"ttl": "1m"}, rate | {"window": "1h"}
    assert api.ask("/v1/admit", [user, model, rate])[0] == 200
    settle = {"key": user["key"], "id": "r1", "used": [{"key": key, "units": 0} for key in ("{a}:model", "{a}:rate")]}
    assert api.ask("/v1/settle", settle) == (200, {"settled": True, "changes": [-1, -1]})
    status, reply = api.ask("/v1/admit", [user, model | {"key": "{b}:model"}, rate])
    assert status == 502 and "give the keys of one decision the same hash tag" in reply["error"]


def test_a_seed_that_has_left_the_cluster(start_daemon, cluster):
    """It knows of no slots, and is named first. Nobody is refused because of it."""
    lone, others = cluster.servers[-1], cluster.servers[:Cluster.MASTERS]
    lone.cli("CLUSTER", "RESET", "HARD")
    assert lone.cli("CLUSTER", "SLOTS") == ""
    daemon = start_daemon("domain: shop")
    daemon.stop()
    daemon.write_limits(LIMITS)
    daemon.write_settings(server="redis-cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in (lone, *others)))
    for _ in range(3):  # as many as the limit
        daemon.start()
        assert [daemon.codes(f"tenant={tenant}", domain="shop")[0] for tenant in range(20)] == ["OK"] * 20
        daemon.stop()
