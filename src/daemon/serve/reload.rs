//! Reloads the configuration on SIGHUP and when its files change.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::config::watched::Watched;
use crate::service::{Reload, Service};

/// A reload waits this long for further changes.
const SETTLING: Duration = Duration::from_millis(100);

/// A reload waits for at most this many changes.
const MAX_SETTLING: u32 = 10;

/// Reloads the configuration at every change and SIGHUP, forever.
pub async fn reload_on_change(service: Arc<Service>, mut hangup: Signal) {
    let mut is_requested = false;
    loop {
        let (changed, mut changes) = mpsc::channel(1);
        // The next configuration may name other files, and links may lead elsewhere. Reading follows watching, so that
        // no change is missed between them.
        let Some((_watcher, result)) = read(&service, changed).await else { return };
        report(&result, std::mem::take(&mut is_requested));
        if let Reload::Changed = result {
            continue;
        }
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
}

/// Watches the configuration, and reloads it. A separate thread reads the files: large files or slow disks delay neither
/// requests nor shutdown. `None` if it panicked, and logged that.
async fn read(service: &Arc<Service>, changed: mpsc::Sender<()>) -> Option<(Option<RecommendedWatcher>, Reload)> {
    let (tell, told) = oneshot::channel();
    let service = service.clone();
    thread::spawn(move || {
        let watcher = watch(service.watched(), changed);
        tell.send((watcher, service.reload()))
    });
    told.await.ok()
}

fn report(result: &Reload, is_requested: bool) {
    match result {
        Reload::Changed => tracing::info!("configuration reloaded"),
        Reload::Restored => tracing::info!("the configuration equals the one in force again"),
        Reload::Unchanged if is_requested => tracing::info!("configuration reloaded, unchanged"),
        Reload::Unchanged => {}
        Reload::Refused { is_known: true, .. } if !is_requested => {}
        Reload::Refused { error, .. } => tracing::error!(%error, "the new configuration is invalid; the old one stays"),
    }
}

/// Watches the folders where the configuration can change.
fn watch(watched: Watched, changed: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let watched = Arc::new(watched);
    let concerning = watched.clone();
    let tell = move |event: notify::Result<notify::Event>| {
        let is_change = event.is_ok_and(|event| {
            let is_lost = event.paths.is_empty();
            !event.kind.is_access() && (is_lost || event.paths.iter().any(|path| concerning.concerns(path)))
        });
        if is_change {
            let _ = changed.try_send(()); // fails if a change is pending already
        }
    };
    let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watched.places().into_iter().try_for_each(|folder| watcher.watch(folder, RecursiveMode::NonRecursive))?;
        Ok(watcher)
    });
    watching.inspect_err(|error| tracing::warn!(%error, "cannot watch files; send SIGHUP after changes")).ok()
}
