//! Slow views, rendered on a thread of their own, so that decisions do not wait for them.

use std::collections::HashMap;
use std::hash::Hash;
use std::iter::once;
use std::sync::mpsc::{channel, Sender};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// After a snapshot the thread pauses for this multiple of its duration. Readers meanwhile share the next one.
const PAUSES: u32 = 4;
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Snapshots, one at a time, for all readers who asked before it began.
pub struct Snapshots<Q, T>(Sender<(Q, oneshot::Sender<T>)>);

impl<Q: Eq + Hash + Send + 'static, T: Clone + Send + 'static> Snapshots<Q, T> {
    /// Starts the thread. `make` creates a snapshot, which answers its readers' questions.
    pub fn new<S: Fn(&Q) -> T>(name: &str, mut make: impl FnMut() -> S + Send + 'static) -> Self {
        let (sender, readers) = channel::<(Q, oneshot::Sender<T>)>();
        let serve = move || {
            while let Ok(first) = readers.recv() {
                let began = Instant::now();
                let mut by_question: HashMap<Q, Vec<oneshot::Sender<T>>> = HashMap::new();
                for (question, reader) in once(first).chain(readers.try_iter()) {
                    by_question.entry(question).or_default().push(reader);
                }
                let snapshot = make();
                for (question, readers) in by_question {
                    let shown = snapshot(&question);
                    for reader in readers {
                        let _ = reader.send(shown.clone()); // it may have gone
                    }
                }
                drop(snapshot);
                thread::sleep((began.elapsed() * PAUSES).min(MAX_PAUSE));
            }
        };
        thread::Builder::new().name(name.into()).spawn(serve).expect("the system starts threads");
        Self(sender)
    }

    /// The answer of a snapshot that begins now or later; `None` if the thread has panicked.
    pub async fn show(&self, question: Q) -> Option<T> {
        let (reader, shown) = oneshot::channel();
        self.0.send((question, reader)).ok()?;
        shown.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::future::join_all;
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn later_readers_share_a_snapshot() {
        let (begun, begins) = channel();
        let (go_on, goes_on) = channel();
        let mut made = 0;
        let snapshots = Arc::new(Snapshots::new("test", move || {
            made += 1;
            begun.send(()).unwrap();
            goes_on.recv().unwrap();
            move |question: &&str| format!("{made} {question}")
        }));
        let mut first = Box::pin(snapshots.show("a"));
        assert!(poll!(&mut first).is_pending());
        begins.recv().unwrap();
        let mut later = Box::pin(join_all((0..50).map(|reader| snapshots.show(if reader == 7 { "b" } else { "a" }))));
        assert!(poll!(&mut later).is_pending());
        go_on.send(()).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(first.await.as_deref(), Some("1 a"));
        for (reader, shown) in later.await.into_iter().enumerate() {
            assert_eq!(shown.as_deref(), Some(if reader == 7 { "2 b" } else { "2 a" }));
        }
        begins.recv().unwrap();
        assert!(begins.try_recv().is_err());
    }
}
