//! Descriptor entries.

/// A key and a value of a request's descriptor. Clients choose values, and not all of them send UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}
