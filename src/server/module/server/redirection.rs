//! The redirection error (MOVED, ASK, …) for a key whose slot this node no longer serves.
//!
//! Read from `CLUSTER NODES`: Valkey 8 crashes when a module's timer asks for `CLUSTER SLOTS`.

use super::call_server::CallReply;
use super::context::Context;
use super::text::{OwnText, Text};

/// The error that redirects a client to the node that serves the key, or that its slot is migrating to.
pub fn redirection(context: Context, key: &Text) -> String {
    let [keyslot, nodes] = [&b"KEYSLOT"[..], b"NODES"].map(OwnText::new);
    let (CallReply::Integer(slot), CallReply::Text(nodes)) =
        (context.call(c"CLUSTER", &[&keyslot, key]), context.call(c"CLUSTER", &[&nodes]))
    else {
        return UNKNOWN.into();
    };
    let endpoint =
        context.setting(b"cluster-preferred-endpoint-type").map_or(Endpoint::Ip, |value| Endpoint::of(&value));
    let nodes = String::from_utf8_lossy(&nodes);
    let nodes: Vec<Node> = nodes.lines().filter_map(Node::parse).collect();
    if let Some(node) = leaving_for(&nodes, slot) {
        return format!("ASK {slot} {}", node.address(endpoint));
    }
    match nodes.iter().find(|node| node.has(slot)) {
        Some(node) => format!("MOVED {slot} {}", node.address(endpoint)),
        None => UNSERVED.into(),
    }
}

/// Clients retry after this error.
const UNKNOWN: &str = "TRYAGAIN The key's slot is moving";
/// The server's own words.
const UNSERVED: &str = "CLUSTERDOWN Hash slot not served";

/// The server's setting `cluster-preferred-endpoint-type`.
#[derive(Clone, Copy)]
enum Endpoint {
    Ip,
    Hostname,
    /// No host: clients keep the one they used.
    Unknown,
}

impl Endpoint {
    fn of(setting: &[u8]) -> Self {
        match setting {
            b"hostname" => Endpoint::Hostname,
            b"unknown-endpoint" => Endpoint::Unknown,
            _ => Endpoint::Ip,
        }
    }
}

/// A line of `CLUSTER NODES`: id, address, flags, …, and from the ninth word on its slots.
struct Node<'a> {
    id: &'a str,
    /// `ip:port@port,hostname`, the hostname not with all.
    address: &'a str,
    is_this: bool,
    slots: Vec<&'a str>,
}

impl<'a> Node<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, address, flags) = (words.next()?, words.next()?, words.next()?);
        Some(Self { id, address, is_this: flags.contains("myself"), slots: words.skip(5).collect() })
    }

    /// Whether a slot, or a range around it, is among its own.
    fn has(&self, slot: i64) -> bool {
        self.slots.iter().any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            matches!((first.parse::<i64>(), last.parse::<i64>()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
        })
    }

    fn address(&self, endpoint: Endpoint) -> String {
        let (address, names) = self.address.split_once(',').unwrap_or((self.address, ""));
        let (ip, port) = address.split('@').next().and_then(|address| address.rsplit_once(':')).unwrap_or(("", "0"));
        let host = match endpoint {
            Endpoint::Ip => ip,
            Endpoint::Hostname => names.split(',').next().filter(|name| !name.is_empty()).unwrap_or("?"),
            Endpoint::Unknown => "",
        };
        format!("{host}:{port}")
    }
}

/// Where a slot of this node is moving to: among its slots is `[slot->-id]` then.
fn leaving_for<'a>(nodes: &'a [Node<'a>], slot: i64) -> Option<&'a Node<'a>> {
    let own = nodes.iter().find(|node| node.is_this)?;
    let prefix = format!("[{slot}->-");
    let id = own.slots.iter().find_map(|word| word.strip_prefix(&prefix)?.strip_suffix(']'))?;
    nodes.iter().find(|node| node.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "aa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-99 300 [7->-bb] [8-<-bb]\n\
                         bb ::1:7001@17001,host,shard-id=5 master - 0 0 2 connected 100-199\n\
                         cc 127.0.0.1:7002@17002, slave bb 0 0 2 connected";

    #[test]
    fn a_slot_that_is_leaving() {
        let nodes: Vec<Node> = NODES.lines().filter_map(Node::parse).collect();
        assert_eq!(leaving_for(&nodes, 7).map(|node| node.id), Some("bb"));
        assert!(leaving_for(&nodes, 8).is_none() && leaving_for(&nodes, 9).is_none());
    }

    #[test]
    fn a_slot_that_has_moved() {
        let nodes: Vec<Node> = NODES.lines().filter_map(Node::parse).collect();
        let owner = |slot| nodes.iter().find(|node| node.has(slot)).map(|node| node.id);
        assert_eq!([7, 99, 100, 199, 300].map(owner), ["aa", "aa", "bb", "bb", "aa"].map(Some));
        assert_eq!([200, 301].map(owner), [None, None]);
    }

    #[test]
    fn addresses() {
        let nodes: Vec<Node> = NODES.lines().filter_map(Node::parse).collect();
        let addresses = |endpoint| nodes.iter().map(|node| node.address(endpoint)).collect::<Vec<_>>();
        assert_eq!(addresses(Endpoint::Ip), ["127.0.0.1:7000", "::1:7001", "127.0.0.1:7002"]);
        assert_eq!(addresses(Endpoint::Hostname), ["?:7000", "host:7001", "?:7002"]);
        assert_eq!(addresses(Endpoint::Unknown), [":7000", ":7001", ":7002"]);
    }
}
