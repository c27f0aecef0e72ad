//! What lies between a client and a server, and may be slow, silent, or change a word.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Passes on what comes, as long as the test runs.
pub struct Proxy {
    pub port: u16,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    delay_ms: AtomicU64,
    /// Whether connections that are made now are silent, and will be for ever.
    silent: Mutex<Arc<AtomicBool>>,
    /// A word, and the one of the same length that the server reads in its place.
    word: Option<(&'static str, &'static str)>,
}

impl Proxy {
    pub async fn before(server: u16) -> Self {
        Self::replacing(server, None).await
    }

    pub async fn replacing(server: u16, word: Option<(&'static str, &'static str)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let inner = Arc::new(Inner { word, ..Inner::default() });
        let accepting = Arc::clone(&inner);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let silent = Arc::clone(&accepting.silent.lock());
                tokio::spawn(Arc::clone(&accepting).pass(from_client, to_server, Arc::clone(&silent)));
                tokio::spawn(Arc::clone(&accepting).pass(from_server, to_client, silent));
            }
        });
        Self { port, inner }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// From now on everything takes this much longer, each way half of it.
    pub fn delay(&self, round_trip: Duration) {
        self.inner.delay_ms.store(round_trip.as_millis() as u64 / 2, Ordering::Relaxed);
    }

    /// Nothing is ever again heard over the connections there are, though nobody closes them. While `lasting`, nor
    /// over new ones.
    pub fn fall_silent(&self, lasting: bool) {
        let mut silent = self.inner.silent.lock();
        silent.store(true, Ordering::Relaxed);
        *silent = Arc::new(AtomicBool::new(lasting));
    }
}

impl Inner {
    async fn pass(
        self: Arc<Self>,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
        silent: Arc<AtomicBool>,
    ) {
        let mut buffer = vec![0; 65536];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed))).await;
            if silent.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            if let Some((word, instead)) = self.word {
                let at = buffer[..length].windows(word.len()).position(|bytes| bytes == word.as_bytes());
                if let Some(at) = at {
                    buffer[at..at + word.len()].copy_from_slice(instead.as_bytes());
                }
            }
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
    }
}
