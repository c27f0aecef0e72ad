package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/grpclimit"
)

func adaptive(least int64) *swlimit.Adaptive {
	a, err := swlimit.NewAdaptive(swlimit.AdaptiveOptions{Min: least})
	if err != nil {
		panic(err)
	}
	return a
}

func ends(err error) grpc.UnaryHandler {
	return func(context.Context, any) (any, error) { return nil, err }
}

func TestAdapts(t *testing.T) {
	denies := grpclimit.Unary(limiter(t, nil, 0), func(context.Context, string) string { return "all" })
	info := &grpc.UnaryServerInfo{FullMethod: "/shop.Cart/Add"}
	fine, dropped, ignored := swlimit.AdaptiveStatistics{Done: 1}, swlimit.AdaptiveStatistics{Dropped: 1},
		swlimit.AdaptiveStatistics{Ignored: 1}
	for name, c := range map[string]struct {
		handler        grpc.UnaryHandler
		code           codes.Code
		server, client swlimit.AdaptiveStatistics
	}{
		"fine":          {ends(nil), codes.OK, fine, fine},
		"not found":     {ends(status.Error(codes.NotFound, "")), codes.NotFound, ignored, ignored},
		"broken":        {ends(errors.New("broken")), codes.Unknown, ignored, ignored},
		"away":          {ends(status.Error(codes.Unavailable, "")), codes.Unavailable, dropped, dropped},
		"exhausted":     {ends(status.Error(codes.ResourceExhausted, "")), codes.ResourceExhausted, dropped, dropped},
		"past deadline": {ends(status.Error(codes.DeadlineExceeded, "")), codes.DeadlineExceeded, dropped, dropped},
		"wrapped": {ends(fmt.Errorf("asked: %w", status.Error(codes.Unavailable, ""))), codes.Unavailable, dropped,
			dropped},
		"of a context": {ends(context.DeadlineExceeded), codes.Unknown, dropped, dropped},
		// To a client, a denial of the fleet is a denial of its server.
		"of the fleet": {func(ctx context.Context, request any) (any, error) {
			return denies(ctx, request, info, ends(nil))
		}, codes.ResourceExhausted, ignored, dropped},
	} {
		a := adaptive(20)
		_, err := grpclimit.AdaptUnary(a)(ctx, nil, info, c.handler)
		if status.Code(err) != c.code || a.Statistics() != c.server || a.InFlight() != 0 {
			t.Errorf("%s: %v, %+v", name, err, a.Statistics())
		}
		a = adaptive(20)
		err = grpclimit.AdaptClient(a)(ctx, info.FullMethod, nil, nil, nil, func(ctx context.Context, _ string, _, _ any,
			_ *grpc.ClientConn, _ ...grpc.CallOption) error {
			_, err := c.handler(ctx, nil)
			return err
		})
		if status.Code(err) != c.code || a.Statistics() != c.client || a.InFlight() != 0 {
			t.Errorf("%s, client: %v, %+v", name, err, a.Statistics())
		}
		a = adaptive(20)
		err = grpclimit.Run(a, func() error {
			_, err := c.handler(ctx, nil)
			return err
		})
		if status.Code(err) != c.code || a.Statistics() != c.client || a.InFlight() != 0 {
			t.Errorf("%s, run: %v, %+v", name, err, a.Statistics())
		}
	}
	all, some := adaptive(20), adaptive(20)
	_, err := grpclimit.AdaptUnary(all)(ctx, nil, info, func(ctx context.Context, request any) (any, error) {
		return grpclimit.AdaptUnary(some)(ctx, request, info, func(ctx context.Context, request any) (any, error) {
			return denies(ctx, request, info, ends(nil))
		})
	})
	if status.Code(err) != codes.ResourceExhausted || all.Statistics() != ignored || some.Statistics() != ignored {
		t.Errorf("%v, %+v, %+v", err, all.Statistics(), some.Statistics())
	}
	one := adaptive(1)
	func() {
		defer func() { _ = recover() }()
		_ = grpclimit.Run(one, func() error { panic("broken") })
	}()
	if err := grpclimit.Run(one, func() error {
		return grpclimit.Run(one, func() error { return nil })
	}); !errors.Is(err, swlimit.ErrDenied) || one.Statistics() != (swlimit.AdaptiveStatistics{Ignored: 2, Denied: 1}) {
		t.Errorf("%v, %+v", err, one.Statistics())
	}
	_, err = grpclimit.AdaptUnary(one)(ctx, nil, info, func(ctx context.Context, _ any) (any, error) {
		err := grpclimit.AdaptClient(one)(ctx, info.FullMethod, nil, nil, nil, nil)
		if status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		return grpclimit.AdaptUnary(one)(ctx, nil, info, ends(nil))
	})
	if status.Code(err) != codes.Unavailable || one.Statistics().Denied != 3 {
		t.Errorf("%v, %+v", err, one.Statistics())
	}
}
