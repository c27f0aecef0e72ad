//! A cluster: a few masters without replicas.

use super::eventually;
use super::server::{free_port, Server, Starting};

pub struct Cluster(pub Vec<Server>);

const SLOTS: u32 = 16384;

impl Cluster {
    pub async fn start(masters: u32) -> Self {
        Self::of(masters, Server::builder).await
    }

    /// Without the module.
    pub async fn bare(masters: u32) -> Self {
        Self::of(masters, || Server::builder().bare()).await
    }

    async fn of(masters: u32, builder: impl Fn() -> Starting) -> Self {
        let start = |_| {
            let server = builder().with("cluster-enabled", "yes").with("cluster-node-timeout", 2000);
            server.with("cluster-port", free_port()).start()
        };
        let servers: Vec<Server> = (0..masters).map(start).collect();
        for (number, server) in (0..masters).zip(&servers) {
            let (first, end) = (number * SLOTS / masters, (number + 1) * SLOTS / masters);
            server.say::<()>(&format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1));
            // Of two nodes that meet at the same time, one may be forgotten.
            let bus: Vec<String> = servers[0].say("CONFIG GET cluster-port");
            if number > 0 {
                server.say::<()>(&format!("CLUSTER MEET 127.0.0.1 {} {}", servers[0].port, bus[1]));
            }
        }
        let cluster = Self(servers);
        eventually("a whole cluster", async || {
            let whole = |server: &Server| {
                let info: String = server.say("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{masters}"))
            };
            cluster.0.iter().all(whole).then_some(())
        })
        .await;
        cluster
    }

    pub fn url(&self) -> String {
        format!("redis-cluster://127.0.0.1:{}/", self.0[0].port)
    }

    /// The number of the node that has a key.
    pub fn owner(&self, key: &str) -> usize {
        let slot: u32 = self.0[0].say(&format!("CLUSTER KEYSLOT {key}"));
        let has = |server: &Server| {
            let nodes: String = server.say("CLUSTER NODES");
            let own = nodes.lines().find(|line| line.contains("myself")).unwrap();
            let ranges = own.split(' ').skip(8).filter_map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
            });
            ranges.into_iter().any(|range| range.contains(&slot))
        };
        self.0.iter().position(has).unwrap()
    }

    /// Move the slot of a key, with the key in it, to another node.
    pub fn reshard(&self, key: &str, to: usize) {
        let (from, to) = (&self.0[self.owner(key)], &self.0[to]);
        let slot: u32 = from.say(&format!("CLUSTER KEYSLOT {key}"));
        let id = |server: &Server| server.say::<String>("CLUSTER MYID");
        to.say::<()>(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", id(from)));
        from.say::<()>(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", id(to)));
        from.say::<()>(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port));
        for server in [to, from] {
            server.say::<()>(&format!("CLUSTER SETSLOT {slot} NODE {}", id(to)));
        }
    }
}
