"""Clusters."""

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .waiting import eventually


class Cluster:
    """Three masters, each with a replica, on loopback. Use as a context manager."""

    MASTERS = 3

    def __init__(self, start, options=None, **others):
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": 2000,
            "cluster-config-file": "nodes.conf",
            "repl-diskless-sync-delay": 0,
            "repl-diskless-load": "swapdb",
        } | (options or {})
        self.servers = [start(options=options, **others) for _ in range(2 * self.MASTERS)]
        masters, replicas = self.servers[:self.MASTERS], self.servers[self.MASTERS:]
        bounds = [16384 * number // self.MASTERS for number in range(self.MASTERS + 1)]
        for number, server in enumerate(masters):
            with server.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        with masters[0].client() as client:
            for server in self.servers[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        for server in self.servers:
            eventually(lambda: len(self.nodes(server)) == len(self.servers))
        for master, replica in zip(masters, replicas):
            with replica.client() as client:
                eventually(lambda: client.execute_command("CLUSTER", "REPLICATE", self.id(master)))
        self.settle()

    def settle(self, without=()):
        """Wait until all nodes agree that the cluster is whole, and every replica follows its master."""
        def settled(server):
            with server.client() as client:
                state = client.execute_command("CLUSTER INFO")["cluster_state"]
                roles = [node["flags"] for node in self.nodes(server).values() if "fail" not in node["flags"]]
                link = client.info("replication").get("master_link_status", "up")
                return (state == "ok" and link == "up" and len(roles) == len(self.servers) - len(without)
                        and sum("master" in role for role in roles) == self.MASTERS)
        for server in self.servers:
            if server not in without:
                eventually(lambda: settled(server), seconds=30, log=lambda: server.log[-2000:])

    @staticmethod
    def nodes(server):
        with server.client() as client:
            return client.execute_command("CLUSTER NODES")

    @staticmethod
    def id(server):
        with server.client() as client:
            return client.execute_command("CLUSTER", "MYID").decode()

    def role(self, server):
        """What a node is now, and whose replica, as its `INFO replication` says."""
        with server.client() as client:
            return client.info("replication")

    def masters(self):
        """The servers that are masters now."""
        return [server for server in self.servers if server.alive and self.role(server)["role"] == "master"]

    def replica(self, master):
        """The server that replicates a master."""
        for server in self.servers:
            if server.alive and self.role(server).get("master_port") == master.port:
                return server
        raise LookupError(master.port)

    def slots(self, server):
        """The ranges of slots that a server says it has."""
        for node in self.nodes(server).values():
            if "myself" in node["flags"]:
                return [(int(part[0]), int(part[-1])) for part in node["slots"]]
        raise LookupError(server)

    def connect(self):
        """A client that knows clusters, and sends nothing twice."""
        return redis.RedisCluster(host="127.0.0.1", port=self.masters()[0].port, socket_timeout=5,
                                  retry=Retry(NoBackoff(), 0))
