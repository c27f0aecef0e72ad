// Package grpclimit limits the calls of servers of google.golang.org/grpc.
package grpclimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/httplimit"
)

// A Key says whom a call counts for, by its context and its full method, such as "/shop.Cart/Add". A call for which it
// says "" is not limited.
type Key func(ctx context.Context, method string) string

// Address is the key of a client by the address that has connected, as [httplimit.Address] has it.
func Address(ctx context.Context, _ string) string {
	client, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return httplimit.Address(&http.Request{RemoteAddr: client.Addr.String()})
}

// Unary limits calls. A denied one ends with RESOURCE_EXHAUSTED, whose details say in a google.rpc.RetryInfo when to
// try again, where that helps. The metadata of each response has what httplimit says in headers: ratelimit,
// ratelimit-policy, and retry-after of a denial. Where the limiter returns an error (its OnFailure is Error, or the
// server refuses), the call ends with UNAVAILABLE.
func Unary(limiter *swlimit.Limiter, key Key) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		set := func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }
		if err := allow(ctx, limiter, key(ctx, info.FullMethod), set); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

// Stream limits how often streams begin, as [Unary] limits calls. The messages of a stream do not count.
func Stream(limiter *swlimit.Limiter, key Key) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := stream.Context()
		if err := allow(ctx, limiter, key(ctx, info.FullMethod), stream.SetHeader); err != nil {
			return err
		}
		return handler(server, stream)
	}
}

// HoldStream has each stream hold a place for as long as it lives: so many streams at once. It does not wait for a
// place: without one the stream ends with RESOURCE_EXHAUSTED. When the place is lost, the context of the stream that
// the handler gets is cancelled with the cause swlimit.ErrLost; a handler that waits for messages should watch it.
func HoldStream(holds *swlimit.Holds, key Key) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		name := key(stream.Context(), info.FullMethod)
		if name == "" {
			return handler(server, stream)
		}
		hold, err := holds.TryAcquire(stream.Context(), name)
		if err != nil {
			return failed(stream.Context(), err)
		}
		defer hold.Release()
		ctx, cancel := context.WithCancelCause(stream.Context())
		defer cancel(nil)
		defer context.AfterFunc(hold.Context(), func() { cancel(context.Cause(hold.Context())) })()
		return handler(server, &holding{stream, ctx})
	}
}

// holding is a stream that holds a place.
type holding struct {
	grpc.ServerStream
	ctx context.Context
}

func (h *holding) Context() context.Context { return h.ctx }

func allow(ctx context.Context, limiter *swlimit.Limiter, key string, set func(metadata.MD) error) error {
	if key == "" {
		return nil
	}
	decision, err := limiter.Allow(ctx, key)
	if err != nil {
		return failed(ctx, err)
	}
	headers := http.Header{}
	httplimit.SetHeaders(headers, limiter, decision)
	md := metadata.MD{}
	for name, values := range headers {
		md.Append(name, values...)
	}
	_ = set(md) // fails when the client has gone
	if !decision.Allowed() {
		ignore(ctx)
		return denied(decision)
	}
	return nil
}

// failed is how a call ends that was not decided, or a stream that got no place.
func failed(ctx context.Context, err error) error {
	ignore(ctx)
	var refused *swlimit.DeniedError
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.As(err, &refused):
		return denied(refused.Decision)
	case !errors.Is(err, swlimit.ErrUnavailable):
		slog.Error("swlimit: a call could not be limited", "error", err)
	}
	return status.Error(codes.Unavailable, "the call could not be limited")
}

func denied(d swlimit.Decision) error {
	s := status.New(codes.ResourceExhausted, "too many requests")
	if d.RetryAfter != swlimit.Never && d.RetryAfter != swlimit.Unknown {
		if more, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}); err == nil {
			s = more
		}
	}
	return s.Err()
}
