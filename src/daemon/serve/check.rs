//! Checks now and then whether the server can decide, for the log, health checks and metrics.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::config::policy::Module;
use crate::core::{self, Checked};
use crate::service::Service;

/// Interval until the server can decide and its user lacks no right.
const SOON: Duration = Duration::from_secs(5);

/// The least and the most from then on. It varies, so that the instances of a fleet do not check together.
const LATER: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(90));

/// Checks the server, forever.
pub async fn check_server(service: Arc<Service>) {
    // One client for all checks, so that it logs an unavailable server once.
    let checker = match core::checker(&service.live().configuration.settings) {
        Ok(checker) => checker,
        Err(error) => return tracing::error!(%error, "cannot check the server"),
    };
    loop {
        let checked = core::check(&checker, &service.live().configuration.limits).await;
        let is_fine = checked.can_decide() && checked.lacks.is_empty();
        let before = service.set_checked(checked.clone());
        report(&service, &checked, &before.unwrap_or_default());
        let (least, most) = LATER;
        sleep(if is_fine { least + (most - least).mul_f64(fastrand::f64()) } else { SOON }).await;
    }
}

/// Logs what has changed.
fn report(service: &Service, checked: &Checked, before: &Checked) {
    let module = service.live().configuration.settings.module;
    if let Some(reason) = checked.unusable().filter(|reason| before.unusable().as_ref() != Some(reason)) {
        tracing::error!(reason, "no limit is counted");
    }
    if checked.by_script && !before.by_script && module == Module::Auto {
        tracing::info!("the script decides: a module that is loaded later takes its keys over");
    }
    if checked.lacks != before.lacks && !checked.lacks.is_empty() {
        let rights = checked.lacks.join(", ");
        tracing::warn!(rights, "the user lacks these rights on the server: see its ACL");
    }
}
