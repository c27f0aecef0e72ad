//! A web service that serves each path five times in ten seconds, for all clients together.
//!
//! ```sh
//! cargo run --package swlimit-client --example axum redis://127.0.0.1:6379/ 127.0.0.1:3000
//! for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:3000/a; done
//! ```
//!
//! That prints `200` five times and then `429`, and `curl --include` shows what the responses say about the limit.

use axum::extract::Path;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::Router;
use swlimit_client::tower::{Limit, RateLimitLayer};
use swlimit_client::{Client, Quota};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379/".into());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".into());

    let client = Client::connect(&server).await?;
    let limiter = client.limiter(Quota::with_resolution(5, "10s", "1s")?).build()?;
    let by_path = Limit::new(&limiter, |request| Some(format!("path:{}", request.uri.path())));
    let layer = RateLimitLayer::new([by_path])
        .on_denial(|_, _| (axum::http::StatusCode::TOO_MANY_REQUESTS, "too many requests\n").into_response());
    let app = Router::new().route("/{name}", get(hello)).layer(layer);

    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn hello(Path(name): Path<String>) -> String {
    format!("hello {name}\n")
}
