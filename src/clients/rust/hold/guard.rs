//! A hold in a program: renewed while it lives, released when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::local::LocalHold;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::upstream::{HoldName, HoldRenewer, Lifetime};

/// Units of a limit that are held, or the denial of them. It renews itself, and is released once when it is dropped,
/// also when its task is cancelled; nobody waits for that. A client that is closed has released what was dropped.
///
/// It may be lost all the same: the server was unavailable for longer than the time to live, or has forgotten it. Then
/// [`is_live`](Self::is_live) is false, and [`lost`](Self::lost) tells.
#[must_use = "units are held for as long as this is kept, if they were granted"]
pub struct Hold {
    decision: Decision,
    expires_after: Option<Duration>,
    token: Option<u64>,
    taken: Taken,
}

/// The units that a guard holds.
pub(crate) enum Taken {
    Nothing,
    /// A hold on the server.
    There(HoldRenewer, HoldName, Arc<Lifetime>),
    /// A hold of this process, by the failure policy or without a server.
    Here(#[expect(dead_code, reason = "it is dropped")] LocalHold),
    /// Nothing that is counted anywhere: the failure policy grants everything.
    Uncounted,
}

/// Tells when a hold is lost. Cheap to clone; it does not keep the hold.
#[derive(Clone, Debug)]
pub struct Lost(Option<watch::Receiver<bool>>);

impl Lost {
    /// Waits until the hold is lost; for ever when it never is. It may tell late: a machine that slept, a busy runtime.
    pub async fn lost(mut self) {
        if let Some(lost) = &mut self.0 {
            if lost.wait_for(|lost| *lost).await.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }
}

impl Hold {
    pub(crate) fn denied(decision: Decision) -> Self {
        Self { decision, expires_after: None, token: None, taken: Taken::Nothing }
    }

    /// One that nobody but this process knows of.
    pub(crate) fn local(decision: Decision, taken: Taken) -> Self {
        Self { decision, expires_after: None, token: None, taken }
    }

    /// One of the server's, which the renewer renews.
    pub(crate) fn there(decision: Decision, expires_after: u64, token: u64, taken: Taken) -> Self {
        let expires_after = Some(Duration::from_millis(expires_after));
        Self { decision, expires_after, token: Some(token), taken }
    }

    /// Whether the units were granted.
    pub fn granted(&self) -> bool {
        self.decision.granted()
    }

    /// The decision: units, limit, what remained, and when to retry.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How long it lived when it was granted, if it was not renewed; `None` where it was denied or is local.
    pub fn expires_after(&self) -> Option<Duration> {
        self.expires_after
    }

    /// The fencing token: larger than that of every hold granted for this key before. `None` where it was denied, or
    /// is local.
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// What decided.
    pub fn source(&self) -> Source {
        self.decision.source()
    }

    /// The id by which the server knows it; `None` where it was denied, or is local.
    pub fn id(&self) -> Option<&[u8]> {
        match &self.taken {
            Taken::There(_, name, _) => Some(&name.id),
            _ => None,
        }
    }

    /// Whether its holder may go on: it was granted, and is not over. Ask before each step that nobody else may take:
    /// the clock is compared at every call, one that goes on while the machine sleeps.
    pub fn is_live(&self) -> bool {
        match &self.taken {
            Taken::Nothing => false,
            Taken::There(_, _, life) => life.is_live(),
            Taken::Here(_) | Taken::Uncounted => true,
        }
    }

    /// Tells when it is lost, to be waited for beside the work.
    pub fn lost(&self) -> Lost {
        match &self.taken {
            Taken::There(_, _, life) => Lost(Some(life.watch())),
            _ => Lost(None),
        }
    }

    /// Releases it and waits for that; how many units were freed. Dropping it does the same without waiting.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and [`Error::Refused`]; it is released all the same, as soon as the server can be asked.
    pub async fn release(mut self) -> Result<u64, Error> {
        let units = self.decision.units();
        let Taken::There(renewer, name, _) = &self.taken else { return Ok(units) };
        renewer.forget(name.clone());
        let deadline = Instant::now() + renewer.upstream().timeout();
        let freed = renewer.upstream().insist(name.release(), deadline, None).await?.natural()?;
        self.taken = Taken::Nothing;
        Ok(freed)
    }

    /// Leaves the hold to a caller that knows its id: nothing here renews or releases it any more, and it ends with its time
    /// to live. The id; `None` where it was denied, or is local.
    pub fn detach(mut self) -> Option<Vec<u8>> {
        match self.hand_over() {
            Taken::There(renewer, name, _) => {
                let id = name.id.to_vec();
                renewer.forget(name);
                Some(id)
            }
            _ => None,
        }
    }

    /// Hands over what is held: the guard holds nothing any more.
    pub(crate) fn hand_over(&mut self) -> Taken {
        std::mem::replace(&mut self.taken, Taken::Nothing)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Taken::There(renewer, name, _) = self.hand_over() {
            renewer.release(name);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("Hold");
        fields.field("decision", &self.decision).field("token", &self.token).field("is_live", &self.is_live()).finish()
    }
}
