//! Limits that rise after idleness, on real servers.

use std::time::Duration;

use swlimit_client::{Client, HoldRequest, Limiter, Mode, Quota, Request};

use crate::support::patient;
use crate::support::server::Server;

const HOUR: Duration = Duration::from_secs(3600);

/// 60 an hour, of which there are 20 at first.
fn limiter(client: &Client, mode: Mode) -> Limiter {
    client.limiter(Quota::new(60, "1h").unwrap()).mode(mode).warm_up(10 * HOUR).build().unwrap()
}

async fn one_limit_for_all(server: &Server) {
    for mode in [Mode::Direct, Mode::Cached, Mode::Leased] {
        let (client, key) = (patient().connect(&server.url()).await.unwrap(), format!("{mode:?}"));
        let first = limiter(&client, mode);
        for _ in 0..20 {
            assert!(first.allow(&key).await.unwrap().granted(), "{mode:?}");
        }
        let late = limiter(&client, mode).allow(&key).await.unwrap();
        assert_eq!((late.granted(), late.limit()), (false, 20), "{mode:?}");
        assert!(late.retry_after().is_some_and(|wait| wait < HOUR), "{mode:?}: {late:?}");
        let never = first.allow(Request::new(&key).cost(61)).await.unwrap();
        assert_eq!(never.retry_after(), None);
        client.close().await;
    }

    let client = patient().connect(&server.url()).await.unwrap();
    let rising = limiter(&client, Mode::Direct);
    let dear = |key| Request::new(key).cost(40);
    assert!(rising.acquire(dear("{k}:waits"), HOUR).await.unwrap().granted(), "nobody was there before");
    let both = [(&rising, dear("{k}:waits")), (&rising, dear("{k}:both"))];
    assert!(!client.allow_all(&both).await.unwrap().granted());
    let holds = client.holds(1).build().unwrap();
    let admitted = client.admit([(&rising, dear("{k}:admit")).into(), (&holds, HoldRequest::new("{k}:hold")).into()]);
    let admitted = admitted.await.unwrap();
    assert_eq!((admitted.granted(), admitted.each()[0].limit()), (true, 40));
    let denied = rising.allow("{k}:admit").await.unwrap();
    assert_eq!((denied.granted(), denied.limit()), (false, 20));
}

#[tokio::test]
async fn by_the_module() {
    one_limit_for_all(&Server::builder().start()).await;
}

#[tokio::test]
async fn by_the_script() {
    one_limit_for_all(&Server::builder().bare().start()).await;
}
