//! A time-out for what a connection reads.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{sleep, Sleep};

/// The length of HTTP/2's preface. hyper reads this many bytes to tell HTTP/1 from HTTP/2, and has no time-out for it.
const PREFACE: usize = 24;

/// A stream that fails if some bytes take too long.
pub struct ReadTimeout<S> {
    stream: S,
    /// When it fails, and how many bytes have to be read before; `None` once they have been.
    waiting: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> ReadTimeout<S> {
    /// The preface has to come within this time.
    pub fn of_preface(stream: S, timeout: Duration) -> Self {
        Self { stream, waiting: Some((Box::pin(sleep(timeout)), PREFACE)) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadTimeout<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let Some((timeout, missing)) = &mut this.waiting else {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        };
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Pending => {
                ready!(timeout.as_mut().poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            Poll::Ready(result) => {
                *missing = missing.saturating_sub(buffer.filled().len() - before);
                if *missing == 0 {
                    this.waiting = None;
                }
                Poll::Ready(result)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadTimeout<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
