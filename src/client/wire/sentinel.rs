//! The primary's address, from sentinels.

use redis::{AsyncConnectionConfig, ConnectionInfo};

use super::url::with_host;
use super::Failure;

/// Sentinels, and the primary they are asked for.
pub(super) struct Sentinels {
    pub nodes: Vec<ConnectionInfo>,
    /// The settings of connections to the primary; its address is the sentinels' to say.
    pub primary: ConnectionInfo,
    pub name: String,
}

impl Sentinels {
    /// Asks all sentinels at the same time; the first that knows the primary is believed.
    pub async fn primary(&self) -> Result<ConnectionInfo, Failure> {
        let asking = self.nodes.iter().map(|node| Box::pin(self.ask(node.clone())));
        let (host, port) = futures_util::future::select_ok(asking).await?.0;
        Ok(with_host(&self.primary, host, port))
    }

    async fn ask(&self, node: ConnectionInfo) -> Result<(String, u16), Failure> {
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let mut connection = redis::Client::open(node)?.get_multiplexed_async_connection_with_config(&config).await?;
        let mut command = redis::cmd("SENTINEL");
        let address: Option<(String, u16)> =
            command.arg("get-master-addr-by-name").arg(&self.name).query_async(&mut connection).await?;
        address.ok_or_else(|| Failure::Connection(format!("the sentinels do not know a primary called {}", self.name)))
    }
}

impl std::fmt::Display for Sentinels {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        write!(to, "{} (of {})", self.name, nodes.join(","))
    }
}
