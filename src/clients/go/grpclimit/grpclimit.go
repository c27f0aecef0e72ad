// Package grpclimit limits the calls of servers of google.golang.org/grpc.
package grpclimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"

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

// Forwarded is the key of a client behind proxies whose networks are trusted, by the metadata x-forwarded-for: see
// [httplimit.Forwarded].
func Forwarded(trusted ...netip.Prefix) Key {
	key := httplimit.Forwarded(trusted...)
	return func(ctx context.Context, _ string) string {
		client, ok := peer.FromContext(ctx)
		if !ok {
			return ""
		}
		hops := metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")
		return key(&http.Request{RemoteAddr: client.Addr.String(), Header: http.Header{"X-Forwarded-For": hops}})
	}
}

// An Option changes what an interceptor does.
type Option func(*settings)

type settings struct {
	denied func(ctx context.Context, method string, d swlimit.Decision) error
	cost   func(ctx context.Context, method string, request any) int64
}

// OnDenied ends denied calls with another error than RESOURCE_EXHAUSTED. The metadata is set by then.
func OnDenied(end func(ctx context.Context, method string, d swlimit.Decision) error) Option {
	return func(s *settings) { s.denied = end }
}

// Cost says how many units a call costs, in place of 1. A call that costs 0 is not limited. The request is nil where a
// stream begins.
func Cost(units func(ctx context.Context, method string, request any) int64) Option {
	return func(s *settings) { s.cost = units }
}

func settingsOf(options []Option) *settings {
	s := &settings{
		denied: func(_ context.Context, _ string, d swlimit.Decision) error { return exhausted(d) },
		cost:   func(context.Context, string, any) int64 { return 1 },
	}
	for _, option := range options {
		if option != nil {
			option(s)
		}
	}
	return s
}

// Unary limits calls. A denied one ends with RESOURCE_EXHAUSTED, whose details say in a google.rpc.RetryInfo when to
// try again, where that helps. The metadata of each response has what httplimit says in headers: ratelimit,
// ratelimit-policy, and retry-after of a denial. Where the limiter returns an error (its OnFailure is FailError, or the
// server refuses), the call ends with UNAVAILABLE.
func Unary(limiter *swlimit.Limiter, key Key, options ...Option) grpc.UnaryServerInterceptor {
	return unary(one(limiter), key, options)
}

// UnaryLimits is [Unary] of several rates, which decide together. The metadata names each rate.
func UnaryLimits(limits *swlimit.Limits, key Key, options ...Option) grpc.UnaryServerInterceptor {
	return unary(several(limits), key, options)
}

// Stream limits how often streams begin, as [Unary] limits calls. The messages of a stream do not count.
func Stream(limiter *swlimit.Limiter, key Key, options ...Option) grpc.StreamServerInterceptor {
	return stream(one(limiter), key, options)
}

// StreamLimits is [Stream] of several rates, which decide together. The metadata names each rate.
func StreamLimits(limits *swlimit.Limits, key Key, options ...Option) grpc.StreamServerInterceptor {
	return stream(several(limits), key, options)
}

// deciding decides n units of a key, and says in headers what a response says of that.
type deciding func(ctx context.Context, key string, n int64, headers http.Header) (swlimit.Decision, error)

func one(limiter *swlimit.Limiter) deciding {
	return func(ctx context.Context, key string, n int64, headers http.Header) (swlimit.Decision, error) {
		decision, err := limiter.AllowN(ctx, key, n)
		if err == nil {
			httplimit.SetHeaders(headers, limiter, decision)
		}
		return decision, err
	}
}

func several(limits *swlimit.Limits) deciding {
	return func(ctx context.Context, key string, n int64, headers http.Header) (swlimit.Decision, error) {
		decisions, err := limits.AllowN(ctx, key, n)
		if err != nil {
			return swlimit.Decision{}, err
		}
		httplimit.SetLimitsHeaders(headers, limits, decisions)
		return decisions.Worst(), nil
	}
}

func unary(decide deciding, key Key, options []Option) grpc.UnaryServerInterceptor {
	s := settingsOf(options)
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		set := func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }
		if err := s.allow(ctx, decide, key, info.FullMethod, request, set); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
}

func stream(decide deciding, key Key, options []Option) grpc.StreamServerInterceptor {
	s := settingsOf(options)
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := s.allow(stream.Context(), decide, key, info.FullMethod, nil, stream.SetHeader); err != nil {
			return err
		}
		return handler(server, stream)
	}
}

// HoldStream has each stream hold a place for as long as it lives: so many streams at once. It does not wait for a
// place: without one the stream ends with RESOURCE_EXHAUSTED. When the place is lost, the context of the stream that
// the handler gets is cancelled with the cause swlimit.ErrLost; a handler that waits for messages should watch it.
func HoldStream(holds *swlimit.Holds, key Key, options ...Option) grpc.StreamServerInterceptor {
	s := settingsOf(options)
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx := stream.Context()
		name, n := key(ctx, info.FullMethod), s.cost(ctx, info.FullMethod, nil)
		if name == "" || n == 0 {
			return handler(server, stream)
		}
		hold, err := holds.TryAcquireN(ctx, name, n)
		if err != nil {
			return s.failed(ctx, info.FullMethod, err)
		}
		defer hold.Release()
		living, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(hold.Context(), func() { cancel(context.Cause(hold.Context())) })()
		return handler(server, &holding{stream, living})
	}
}

// holding is a stream that holds a place.
type holding struct {
	grpc.ServerStream
	ctx context.Context
}

func (h *holding) Context() context.Context { return h.ctx }

func (s *settings) allow(ctx context.Context, decide deciding, key Key, method string, request any,
	set func(metadata.MD) error) error {
	name, n := key(ctx, method), s.cost(ctx, method, request)
	if name == "" || n == 0 {
		return nil
	}
	headers := http.Header{}
	decision, err := decide(ctx, name, n, headers)
	if err != nil {
		return s.failed(ctx, method, err)
	}
	md := metadata.MD{}
	for name, values := range headers {
		md.Append(name, values...)
	}
	_ = set(md) // fails when the client has gone
	if !decision.Allowed() {
		ignore(ctx)
		return s.denied(ctx, method, decision)
	}
	return nil
}

// failed is how a call ends that was not decided, or a stream that got no place.
func (s *settings) failed(ctx context.Context, method string, err error) error {
	ignore(ctx)
	var refused *swlimit.DeniedError
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.As(err, &refused):
		return s.denied(ctx, method, refused.Decision)
	case !errors.Is(err, swlimit.ErrUnavailable):
		slog.Error("swlimit: a call could not be limited", "error", err)
	}
	return status.Error(codes.Unavailable, "the call could not be limited")
}

func exhausted(d swlimit.Decision) error {
	s := status.New(codes.ResourceExhausted, "too many requests")
	if d.RetryAfter != swlimit.Never && d.RetryAfter != swlimit.Unknown {
		if more, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}); err == nil {
			s = more
		}
	}
	return s.Err()
}
