//! Where a key is that this node of a cluster no longer has, in the words cluster clients know.

use super::ask::Answer;
use super::context::Context;
use super::text::{OwnText, Text};

/// The error that sends a client to the node that has the key, or to the one it is about to move to.
pub(super) fn redirection(context: Context, key: &Text) -> String {
    let [keyslot, slots, nodes] = [&b"KEYSLOT"[..], b"SLOTS", b"NODES"].map(OwnText::new);
    let slot = match context.ask(c"CLUSTER", &[&keyslot, key]) {
        Answer::Integer(slot) => slot,
        _ => return UNKNOWN.into(),
    };
    let nodes = match context.ask(c"CLUSTER", &[&nodes]) {
        Answer::Text(nodes) => String::from_utf8_lossy(&nodes).into_owned(),
        _ => return UNKNOWN.into(),
    };
    if let Some(address) = leaving_for(&nodes, slot) {
        return format!("ASK {slot} {address}");
    }
    match context.ask(c"CLUSTER", &[&slots]) {
        Answer::Array(ranges) => ranges.iter().find_map(|range| owner(range, slot)).unwrap_or(UNSERVED.into()),
        _ => UNKNOWN.into(),
    }
}

/// What clients try again after.
const UNKNOWN: &str = "TRYAGAIN The key's slot is moving";
/// What the server itself tells clients.
const UNSERVED: &str = "CLUSTERDOWN Hash slot not served";

/// A slot's redirection, if this range of `CLUSTER SLOTS` has it: `[first, last, [address, port, …], …]`.
fn owner(range: &Answer, slot: i64) -> Option<String> {
    let Answer::Array(range) = range else { return None };
    let [Answer::Integer(first), Answer::Integer(last), Answer::Array(node), ..] = &range[..] else { return None };
    let [address, Answer::Integer(port), ..] = &node[..] else { return None };
    // No address: the one that the client has reached this node by.
    let address = if let Answer::Text(address) = address { address } else { &[][..] };
    (*first..=*last).contains(&slot).then(|| format!("MOVED {slot} {}:{port}", String::from_utf8_lossy(address)))
}

/// Where a slot of this node is moving to, by `CLUSTER NODES`: lines of id, address, flags, …, where this node's own has
/// `[slot->-id]`.
fn leaving_for(nodes: &str, slot: i64) -> Option<&str> {
    let own = nodes.lines().find(|line| line.contains("myself"))?;
    let id = own.split(' ').find_map(|word| word.strip_prefix(&format!("[{slot}->-"))?.strip_suffix(']'))?;
    let node = nodes.lines().find(|line| line.starts_with(id))?;
    node.split(' ').nth(1)?.split(['@', ',']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_is_leaving() {
        let nodes = "aa 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-99 [7->-bb] [8-<-bb]\n\
                     bb 127.0.0.1:7001@17001,host master - 0 0 2 connected 100-199\n";
        assert_eq!(leaving_for(nodes, 7), Some("127.0.0.1:7001"));
        assert_eq!((leaving_for(nodes, 8), leaving_for(nodes, 9)), (None, None));
    }

    #[test]
    fn a_slot_that_has_moved() {
        let node =
            Answer::Array(vec![Answer::Text(b"127.0.0.1".into()), Answer::Integer(7001), Answer::Text(b"bb".into())]);
        let range = Answer::Array(vec![Answer::Integer(100), Answer::Integer(199), node]);
        assert_eq!(owner(&range, 150).as_deref(), Some("MOVED 150 127.0.0.1:7001"));
        assert_eq!(owner(&range, 200), None);
        let node = Answer::Array(vec![Answer::Other, Answer::Integer(7001)]);
        let range = Answer::Array(vec![Answer::Integer(100), Answer::Integer(199), node]);
        assert_eq!(owner(&range, 150).as_deref(), Some("MOVED 150 :7001"));
    }
}
