//! Networks whose clients are denied, or allowed without a limit.

use serde::{Deserialize, Serialize};

use super::matching::{MissingHeader, OriginalRequest};
use crate::config::proxy::Networks;

/// Networks that decide before any limit: first those that are denied.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkRules {
    deny: Networks,
    allow: Networks,
}

/// What the client's network decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkDecision {
    Denied,
    Allowed,
}

impl NetworkRules {
    pub fn extend(&mut self, more: Self) {
        self.deny.extend(more.deny);
        self.allow.extend(more.allow);
    }

    /// The decision about a request; `None` if limits decide.
    pub fn decide(&self, request: &OriginalRequest) -> Result<Option<NetworkDecision>, MissingHeader> {
        if self.deny.is_empty() && self.allow.is_empty() {
            return Ok(None);
        }
        let client = request.client()?;
        Ok(match () {
            () if self.deny.contains(client) => Some(NetworkDecision::Denied),
            () if self.allow.contains(client) => Some(NetworkDecision::Allowed),
            () => None,
        })
    }
}
