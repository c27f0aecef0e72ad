//! What proxies ask before they let a request through: nginx's `auth_request`, Caddy's `forward_auth`, Envoy's
//! `ext_authz`.

mod client;
mod original;
mod plan;
mod reply;

use client::TrustedProxies;
pub use original::{asked, Auth};
pub use plan::plan;
pub use reply::{reply, Permission};

/// Where it is asked. What stands behind it is the path of the request.
pub const PATH: &str = "/auth";
