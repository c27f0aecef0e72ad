//! Services that answer `ShouldRateLimit`, and the load that they get: what `bench/daemon.py` starts.

mod floor;
mod limitador;
mod load;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tonic::transport::Server;

/// On one core, as swlimitd on one.
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["floor", port] => serve(port, floor::Floor).await,
        ["limitador", port, mode, url, limits] => serve(port, limitador::Limitador::new(mode, url, limits).await).await,
        ["load", options] => println!("{}", load::run(serde_json::from_str(options).expect("options of a load")).await),
        _ => panic!("nothing called {words:?} is measured"),
    }
}

/// Speak gRPC until somebody ends the process.
async fn serve(port: &str, service: impl RateLimitService) {
    let address = format!("127.0.0.1:{port}").parse().expect("a port");
    let server = Server::builder().add_service(RateLimitServiceServer::new(service));
    server.serve(address).await.expect("a free port");
}
