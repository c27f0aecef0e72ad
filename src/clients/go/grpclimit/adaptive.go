package grpclimit

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/swlimit/swlimit/src/clients/go"
)

// permitsKey finds the permits of a call in its context: of each limit around it.
type permitsKey struct{}

func permitsOf(ctx context.Context) []*swlimit.Permit {
	permits, _ := ctx.Value(permitsKey{}).([]*swlimit.Permit)
	return slices.Clip(permits)
}

// AdaptUnary limits how many calls this process handles at once, by how long they take. One above the limit ends with
// UNAVAILABLE. RESOURCE_EXHAUSTED, UNAVAILABLE and DEADLINE_EXCEEDED are drops; other errors say nothing. Put it before
// [Unary], whose denials say nothing either.
func AdaptUnary(adaptive *swlimit.Adaptive) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		permit, err := adaptive.Permit()
		if err != nil {
			return nil, errBusy
		}
		defer permit.Ignore() // where the handler panics
		response, err := handler(context.WithValue(ctx, permitsKey{}, append(permitsOf(ctx), permit)), request)
		end(permit, err)
		return response, err
	}
}

// AdaptClient limits how many calls a client has under way, by how long they take. Without a permit a call ends with
// UNAVAILABLE. Drops are those of [AdaptUnary].
func AdaptClient(adaptive *swlimit.Adaptive) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, reply any, client *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption) error {
		permit, err := adaptive.Permit()
		if err != nil {
			return errBusy
		}
		return run(permit, func() error { return invoke(ctx, method, request, reply, client, options...) })
	}
}

// Run has f run with a permit, as the method of adaptive does, and knows gRPC's codes: drops are those of [AdaptUnary].
// Without a permit the error is swlimit.ErrDenied.
func Run(adaptive *swlimit.Adaptive, f func() error) error {
	permit, err := adaptive.Permit()
	if err != nil {
		return err
	}
	return run(permit, f)
}

func run(permit *swlimit.Permit, f func() error) error {
	defer permit.Ignore() // where f panics
	err := f()
	end(permit, err)
	return err
}

var errBusy = status.Error(codes.Unavailable, "too many calls are under way")

// end ends a permit by the error of its call.
func end(permit *swlimit.Permit, err error) {
	switch status.Code(err) {
	case codes.OK:
		permit.Done(false)
	case codes.ResourceExhausted, codes.Unavailable, codes.DeadlineExceeded:
		permit.Done(true)
	default:
		if swlimit.IsTimeout(err) {
			permit.Done(true)
		} else {
			permit.Ignore()
		}
	}
}

// ignore has the permits of a call that was denied say nothing.
func ignore(ctx context.Context) {
	for _, permit := range permitsOf(ctx) {
		permit.Ignore()
	}
}
