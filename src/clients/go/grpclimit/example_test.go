package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/grpclimit"
)

// call calls a server with an option so often, and prints how that ends.
func call(times int, option grpc.ServerOption) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(option)
	defer server.Stop()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	for range times {
		_, err := grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
}

func ExampleUnary() {
	limiter, err := swlimit.New(nil, swlimit.Quota{Limit: 1, Window: time.Minute})
	if err != nil {
		panic(err)
	}
	call(2, grpc.UnaryInterceptor(grpclimit.Unary(limiter, grpclimit.Address)))
	// Output:
	// OK
	// ResourceExhausted
}

// A call costs units by its request, and a denial ends with an error of the program's own.
func ExampleUnaryLimits() {
	limits, err := swlimit.NewLimits(nil, "100/hour; 5/second")
	if err != nil {
		panic(err)
	}
	units := func(_ context.Context, _ string, request any) int64 {
		return 3 + int64(len(request.(*grpc_health_v1.HealthCheckRequest).Service))
	}
	busy := func(_ context.Context, _ string, d swlimit.Decision) error {
		return status.Errorf(codes.Unavailable, "again after %v", d.RetryAfter)
	}
	call(2, grpc.UnaryInterceptor(grpclimit.UnaryLimits(limits, grpclimit.Address, grpclimit.Cost(units),
		grpclimit.OnDenied(busy))))
	// Output:
	// OK
	// Unavailable
}
