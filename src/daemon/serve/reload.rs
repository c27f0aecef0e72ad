//! Reloads the configuration on SIGHUP and when its files change.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::service::Service;

/// A reload waits this long for further changes.
const SETTLING: Duration = Duration::from_millis(100);

/// A reload waits for at most this many changes.
const MAX_SETTLING: u32 = 10;

/// Reloads the configuration at every change and SIGHUP, forever.
pub async fn reload_on_change(service: Arc<Service>, mut hangup: Signal) {
    let mut is_requested = false;
    loop {
        let (changed, mut changes) = mpsc::channel(1);
        // The current configuration may name other files than the last one. The first reload finds changes that
        // happened before the watch began.
        let _watcher = watch(&service.watched(), changed);
        while !reload(&service, is_requested).await {
            is_requested = tokio::select! {
                _ = hangup.recv() => true,
                Some(()) = changes.recv() => false,
            };
            for _ in 0..MAX_SETTLING {
                if timeout(SETTLING, changes.recv()).await.is_err() {
                    break;
                }
            }
        }
        is_requested = false;
    }
}

/// Reloads; returns whether the configuration changed. A separate thread reads the files: large files or slow disks
/// delay neither requests nor shutdown.
async fn reload(service: &Arc<Service>, is_requested: bool) -> bool {
    let (tell, told) = oneshot::channel();
    let reading = service.clone();
    thread::spawn(move || tell.send(reading.reload()));
    let Ok(result) = told.await else { return false }; // the thread panicked, and logged it
    match &result {
        Ok(true) => tracing::info!("configuration reloaded"),
        Ok(false) if is_requested => tracing::info!("configuration reloaded, unchanged"),
        Ok(false) => {}
        Err(error) => tracing::error!(%error, "the new configuration is invalid; the old one stays"),
    }
    matches!(result, Ok(true))
}

/// Watches folders for changes. Kubernetes changes a mounted file by replacing a link beside it.
fn watch(folders: &BTreeSet<PathBuf>, changed: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        if !event.is_ok_and(|event| event.kind.is_access()) {
            let _ = changed.try_send(()); // fails if a change is pending already
        }
    };
    let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
        folders.iter().try_for_each(|folder| watcher.watch(folder, RecursiveMode::NonRecursive))?;
        Ok(watcher)
    });
    watching.inspect_err(|error| tracing::warn!(%error, "cannot watch files; send SIGHUP after changes")).ok()
}
