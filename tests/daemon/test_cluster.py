"""swlimitd on a cluster, where only keys of one slot are decided together."""

import pytest

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


def test_limits_of_several_slots(start_daemon, cluster):
    nodes = ",".join(f"127.0.0.1:{server.port}" for server in cluster.servers[:Cluster.MASTERS])
    daemon = start_daemon(LIMITS)
    daemon.stop()
    daemon.write_settings(server=f"redis-cluster://{nodes}")
    daemon.start()

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
