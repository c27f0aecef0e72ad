//! Requests as they come, and replies as they go: how long both may take, and what they may hold meanwhile.

use std::collections::VecDeque;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{ready, Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::Notify;
use tokio::time::{interval, sleep, Sleep};

use super::in_flight::{self, InFlight};
use crate::observe::labels::Rejection;
use crate::observe::metrics;
use crate::protocol::peer::Peer;

/// Transfers up to this size that need no wait are not counted: nearly all.
const FREE: usize = 4096;

/// The timeout of a reply is measured in this many parts.
const PARTS: u32 = 4;

/// Limits of a connection's transfers.
#[derive(Clone)]
pub struct TransferLimits {
    pub in_flight: Arc<InFlight>,
    pub body_timeout: Duration,
    pub reply_timeout: Duration,
}

/// The transfers of one connection.
pub struct Transfers {
    limits: TransferLimits,
    peer: Peer,
    replies: Mutex<Replies>,
    /// A reply takes too long, or too much memory.
    given_up: Arc<Notify>,
}

/// Unsent replies, by the part of time in which each began.
#[derive(Default)]
struct Replies {
    part: u64,
    counts: VecDeque<(u64, usize)>,
}

impl Transfers {
    pub fn new(limits: TransferLimits, peer: Peer) -> Arc<Self> {
        Arc::new(Self { limits, peer, replies: Mutex::default(), given_up: Arc::default() })
    }

    /// The request with a bounded body, and its state.
    pub fn request(self: &Arc<Self>, request: Request<Incoming>) -> (Request<RequestBody>, Receiving) {
        let receiving = Receiving(Arc::default());
        let request = request.map(|body| RequestBody {
            body,
            limits: self.limits.clone(),
            received: 0,
            state: receiving.0.clone(),
            waiting: None,
        });
        (request, receiving)
    }

    /// The reply with a bounded body, or `rejected` if the request was.
    pub fn reply<B: Body<Data = Bytes>>(
        self: &Arc<Self>,
        receiving: Receiving,
        reply: Response<B>,
        rejected: impl FnOnce(Rejection) -> Response<B>,
    ) -> Response<ReplyBody<B>> {
        let reply = match receiving.0.rejection.get() {
            None => reply,
            Some(rejection) => {
                metrics::rejected(*rejection, &self.peer.0);
                rejected(*rejection)
            }
        };
        let size = reply.body().size_hint().lower();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let held = (size > FREE).then(|| self.limits.in_flight.hold(size, self.given_up.clone()));
        let part = self.replies().begin();
        let sending = Arc::new(Sending { transfers: self.clone(), part, _held: held, _receiving: receiving });
        reply.map(|body| ReplyBody { body, sending })
    }

    /// Waits until the connection has to end because of a reply.
    pub async fn given_up(&self) -> Rejection {
        let mut parts = interval((self.limits.reply_timeout / PARTS).max(Duration::from_millis(1)));
        loop {
            tokio::select! {
                () = self.given_up.notified() => return Rejection::Memory,
                _ = parts.tick() => {}
            }
            let mut replies = self.replies();
            replies.part += 1;
            if replies.counts.front().is_some_and(|(part, _)| replies.part - part > u64::from(PARTS)) {
                return Rejection::Slow;
            }
        }
    }

    fn replies(&self) -> MutexGuard<'_, Replies> {
        self.replies.lock().expect("no code panics while it holds this lock")
    }
}

impl Replies {
    fn begin(&mut self) -> u64 {
        match self.counts.back_mut() {
            Some((part, count)) if *part == self.part => *count += 1,
            _ => self.counts.push_back((self.part, 1)),
        }
        self.part
    }

    fn end(&mut self, began: u64) {
        if let Some((_, count)) = self.counts.iter_mut().find(|(part, _)| *part == began) {
            *count -= 1;
        }
        while self.counts.front().is_some_and(|(_, count)| *count == 0) {
            self.counts.pop_front();
        }
    }
}

/// A request that is received, until its reply is sent.
pub struct Receiving(Arc<Received>);

#[derive(Default)]
struct Received {
    held: OnceLock<in_flight::Bytes>,
    rejection: OnceLock<Rejection>,
}

/// The body of a request.
pub struct RequestBody {
    body: Incoming,
    limits: TransferLimits,
    received: usize,
    state: Arc<Received>,
    /// Its timeout, once it is waited for.
    waiting: Option<Waiting>,
}

struct Waiting {
    timeout: Pin<Box<Sleep>>,
    given_up: Pin<Box<OwnedNotified>>,
}

impl RequestBody {
    /// Starts its timeout, and counts its bytes.
    fn wait(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_with(|| {
            let given_up = Arc::new(Notify::new());
            let notified = Box::pin(given_up.clone().notified_owned());
            let held = self.limits.in_flight.hold(self.received + FREE, given_up);
            let _ = self.state.held.set(held); // it is set here only
            Waiting { timeout: Box::pin(sleep(self.limits.body_timeout)), given_up: notified }
        })
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            let Waiting { timeout, given_up } = this.wait();
            let rejection = match given_up.as_mut().poll(cx) {
                Poll::Ready(()) => Rejection::Memory,
                Poll::Pending => {
                    ready!(timeout.as_mut().poll(cx));
                    Rejection::Slow
                }
            };
            let _ = this.state.rejection.set(rejection); // the first one counts
            return Poll::Ready(Some(Err(rejection.name().into())));
        };
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            this.received += data.len();
            match this.state.held.get() {
                Some(held) => held.grow(data.len()),
                None if this.received > FREE => {
                    this.wait();
                }
                None => {}
            }
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a reply.
pub struct ReplyBody<B> {
    body: B,
    sending: Arc<Sending>,
}

/// A reply that is not sent yet.
struct Sending {
    transfers: Arc<Transfers>,
    part: u64,
    _held: Option<in_flight::Bytes>,
    _receiving: Receiving,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.transfers.replies().end(self.part);
    }
}

/// Bytes of a reply, which are dropped when they are sent.
struct Unsent {
    bytes: Bytes,
    _sending: Arc<Sending>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ReplyBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let unsent = |bytes: Bytes| match bytes.len() {
            0..=FREE => bytes,
            _ => Bytes::from_owner(Unsent { bytes, _sending: this.sending.clone() }),
        };
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(unsent))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
