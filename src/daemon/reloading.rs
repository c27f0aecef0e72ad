//! Reading the configuration again: on SIGHUP, and when its files change.

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

/// Files that change together are read together.
const SETTLING: Duration = Duration::from_millis(100);

/// However often they change, they are read after so many of those.
const MOST_SETTLING: u32 = 10;

/// Read the configuration again whenever there is a reason, for ever.
pub async fn reload_on_change(service: Arc<Service>, mut hangup: Signal) {
    let mut is_asked = false;
    loop {
        let (changed, mut changes) = mpsc::channel(1);
        // Of the configuration in force, which may name other files than the last one. What has changed before it is
        // watched is found by reading at once.
        let _watcher = watch(&service.watched(), changed);
        while !reload(&service, is_asked).await {
            is_asked = tokio::select! {
                _ = hangup.recv() => true,
                Some(()) = changes.recv() => false,
            };
            for _ in 0..MOST_SETTLING {
                if timeout(SETTLING, changes.recv()).await.is_err() {
                    break;
                }
            }
        }
        is_asked = false;
    }
}

/// Whether there is another configuration now. It is read in a thread of its own: files may be large, or their disks
/// slow, and neither requests nor the daemon's end wait for them.
async fn reload(service: &Arc<Service>, is_asked: bool) -> bool {
    let (tell, told) = oneshot::channel();
    let reading = service.clone();
    thread::spawn(move || tell.send(reading.reload()));
    let Ok(result) = told.await else { return false }; // it has panicked, and said so
    match &result {
        Ok(true) => tracing::info!("the configuration was read again and is in force"),
        Ok(false) if is_asked => tracing::info!("the configuration was read again and is as it was"),
        Ok(false) => {}
        Err(fault) => tracing::error!(%fault, "the new configuration is refused, the old one goes on"),
    }
    matches!(result, Ok(true))
}

/// Tell of changes in folders. Kubernetes changes a mounted file by changing a link beside it, so folders are watched.
fn watch(folders: &BTreeSet<PathBuf>, changed: mpsc::Sender<()>) -> Option<RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        if !event.is_ok_and(|event| event.kind.is_access()) {
            let _ = changed.try_send(()); // one that waits tells of this one, too
        }
    };
    let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
        folders.iter().try_for_each(|folder| watcher.watch(folder, RecursiveMode::NonRecursive))?;
        Ok(watcher)
    });
    watching.inspect_err(|error| tracing::warn!(%error, "files are not watched: send SIGHUP after changes")).ok()
}
