package httplimit

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
)

// permitsKey finds the permits of a request in its context: of each limit around it.
type permitsKey struct{}

func permitsOf(ctx context.Context) []*swlimit.Permit {
	permits, _ := ctx.Value(permitsKey{}).([]*swlimit.Permit)
	return slices.Clip(permits)
}

// Adapt limits how many requests this process handles at once, by how long they take. One above the limit is answered
// with 503. Answers of 429, 503 and 504, and handlers whose context ends by its deadline, are drops; other errors say
// nothing. Put it before [Middleware], whose denials say nothing either.
func Adapt(adaptive *swlimit.Adaptive) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			permit, err := adaptive.Permit()
			if err != nil {
				http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
				return
			}
			defer permit.Ignore() // where the handler panics
			answer, permits := &answering{ResponseWriter: w}, append(permitsOf(r.Context()), permit)
			next.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), permitsKey{}, permits)))
			switch err := r.Context().Err(); {
			case errors.Is(err, context.DeadlineExceeded):
				permit.Done(true)
			case err == nil:
				end(permit, answer.status)
			}
		})
	}
}

// ignore has the permits of a request that was denied say nothing.
func ignore(r *http.Request) {
	for _, permit := range permitsOf(r.Context()) {
		permit.Ignore()
	}
}

// end ends a permit by the status of its answer, which is 200 where none is written.
func end(permit *swlimit.Permit, status int) {
	switch {
	case isDrop(status):
		permit.Done(true)
	case status == 0 || status >= 200 && status < 400:
		permit.Done(false)
	default:
		permit.Ignore()
	}
}

func isDrop(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable ||
		status == http.StatusGatewayTimeout
}

// answering knows the status of its answer.
type answering struct {
	http.ResponseWriter
	status int
}

func (a *answering) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answering) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

func (a *answering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil {
		a.status = http.StatusSwitchingProtocols
	}
	return conn, both, err
}

// Push lets handlers of HTTP/2 push, where the server does.
func (a *answering) Push(target string, options *http.PushOptions) error {
	if pusher, ok := a.ResponseWriter.(http.Pusher); ok {
		return pusher.Push(target, options)
	}
	return http.ErrNotSupported
}

// ReadFrom lets the server send files without copying them.
func (a *answering) ReadFrom(r io.Reader) (int64, error) { return io.Copy(a.ResponseWriter, r) }

// Transport limits how many requests a client has under way, by how long they take until their answer's body is read or
// closed; nil means http.DefaultTransport. Without a permit the error is swlimit.ErrDenied. Time-outs and answers of
// 429, 503 and 504 are drops; other errors say nothing.
func Transport(adaptive *swlimit.Adaptive, next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &transport{adaptive, next}
}

type transport struct {
	adaptive *swlimit.Adaptive
	next     http.RoundTripper
}

// CloseIdleConnections closes those of the transport behind it.
func (t *transport) CloseIdleConnections() { (&http.Client{Transport: t.next}).CloseIdleConnections() }

// RoundTrip asks with a permit.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	permit, err := t.adaptive.Permit()
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	returned := false
	defer func() {
		if !returned { // it panics
			permit.Ignore()
		}
	}()
	response, err := t.next.RoundTrip(r)
	returned = true
	switch {
	case err != nil:
		fail(r.Context(), permit, err)
	case response.StatusCode < 200 || response.StatusCode >= 400 || response.Body == http.NoBody:
		end(permit, response.StatusCode)
	default:
		response.Body = &body{response.Body, permit, r.Context()}
	}
	return response, err
}

// fail ends a permit by an error. An http.Client whose time is up may cancel the request.
func fail(ctx context.Context, permit *swlimit.Permit, err error) {
	deadline, ok := ctx.Deadline()
	if swlimit.IsTimeout(err) || ok && !time.Now().Before(deadline) {
		permit.Done(true)
	} else {
		permit.Ignore()
	}
}

// body ends a permit when it is read or closed.
type body struct {
	io.ReadCloser
	permit *swlimit.Permit
	ctx    context.Context
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.permit.Done(false)
	case err != nil:
		fail(b.ctx, b.permit, err)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	if cause := b.ctx.Err(); cause != nil {
		fail(b.ctx, b.permit, cause)
	} else {
		b.permit.Done(false)
	}
	return err
}
