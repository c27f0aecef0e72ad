//! Limits that rise after idleness, on real servers.

use std::time::Duration;

use swlimit_client::{Client, Limiter, Mode, Quota, Request};

use crate::support::patient;
use crate::support::server::Server;

const HOUR: Duration = Duration::from_secs(3600);

/// 60 an hour, of which there are 20 at first.
fn limiter(client: &Client, mode: Mode) -> Limiter {
    client.limiter(Quota::new(60, "1h").unwrap()).mode(mode).warm_up(10 * HOUR).build().unwrap()
}

async fn cold_limits_and_late_processes(server: &Server) {
    for mode in [Mode::Direct, Mode::Cached] {
        let (client, key) = (patient().connect(&server.url()).await.unwrap(), format!("{mode:?}"));
        let first = limiter(&client, mode);
        for _ in 0..20 {
            assert!(first.allow(&key).await.unwrap().granted());
        }
        let denied = first.allow(&key).await.unwrap();
        assert_eq!((denied.granted(), denied.limit()), (false, 20), "{mode:?}");

        // What is counted shows how long the limit must have been rising, to all that are denied.
        let whole = client.limiter(Quota::new(60, "1h").unwrap()).build().unwrap();
        for (more, limit) in [(10, 29), (29, 50), (1, 60)] {
            assert!(whole.record(Request::new(&key).cost(more)).await.unwrap().granted());
            let late = limiter(&client, mode).allow(&key).await.unwrap();
            assert_eq!((late.granted(), late.limit()), (false, limit), "{mode:?}");
        }
    }
}

#[tokio::test]
async fn by_the_module() {
    cold_limits_and_late_processes(&Server::builder().start()).await;
}

#[tokio::test]
async fn by_the_script() {
    cold_limits_and_late_processes(&Server::builder().bare().start()).await;
}
