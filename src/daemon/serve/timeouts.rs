//! Timeouts for reads and writes of a connection.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{sleep, Sleep};

/// The length of HTTP/2's preface, which hyper reads to recognize the version, without a timeout.
const PREFACE: usize = 24;

/// A stream that fails if its first bytes are late, or if the peer does not read.
pub struct Timeouts<S> {
    stream: S,
    /// When it fails, and how many bytes have to be read before; `None` once they have been.
    waiting: Option<(Pin<Box<Sleep>>, usize)>,
    write_timeout: Duration,
    /// When a write fails that has begun.
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Timeouts<S> {
    /// Timeouts of the preface, and of each write.
    pub fn new(stream: S, preface_timeout: Duration, write_timeout: Duration) -> Self {
        let waiting = Some((Box::pin(sleep(preface_timeout)), PREFACE));
        Self { stream, waiting, write_timeout, writing: None }
    }

    /// The result of a write, if it takes no longer than it may.
    fn written<T>(&mut self, result: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.writing = None;
            return result;
        }
        let timeout = self.write_timeout;
        let writing = self.writing.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(writing.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timeouts<S> {
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Timeouts<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(written, cx)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.written(flushed, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.stream).poll_shutdown(cx);
        this.written(shut, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.written(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
