package grpclimit_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/grpclimit"
)

// watched is a service with a call and a stream, which lives until its context ends.
type watched struct {
	grpc_health_v1.UnimplementedHealthServer
	ended chan error
}

func (w *watched) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse,
	error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

func (w *watched) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc_health_v1.Health_WatchServer) error {
	if err := stream.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	w.ended <- context.Cause(stream.Context())
	return stream.Context().Err()
}

// served is a client of a server with these interceptors.
func served(t *testing.T, options ...grpc.ServerOption) (grpc_health_v1.HealthClient, *watched) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(options...), &watched{ended: make(chan error, 100)}
	grpc_health_v1.RegisterHealthServer(server, service)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	client, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return grpc_health_v1.NewHealthClient(client), service
}

func limiter(t *testing.T, conn *swlimit.Client, limit int64, options ...swlimit.Option) *swlimit.Limiter {
	t.Helper()
	l, err := swlimit.New(conn, swlimit.Quota{Limit: limit, Window: time.Minute}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// retryOf is the delay of a denial's RetryInfo.
func retryOf(t *testing.T, err error) (time.Duration, bool) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted {
		t.Fatal(err)
	}
	for _, detail := range s.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			return retry.RetryDelay.AsDuration(), true
		}
	}
	return 0, false
}

var ctx = context.Background()

func TestUnary(t *testing.T) {
	client, _ := served(t, grpc.UnaryInterceptor(grpclimit.Unary(limiter(t, nil, 2), grpclimit.Address)))
	var headers metadata.MD
	for left := range 2 {
		if _, err := client.Check(ctx, nil, grpc.Header(&headers)); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`"default";r=%d;t=6`, 1-left)
		if got := headers.Get("ratelimit"); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%q", got)
		}
	}
	_, err := client.Check(ctx, nil, grpc.Header(&headers))
	retry, known := retryOf(t, err)
	if !known || retry <= 0 || retry > 65*time.Second {
		t.Errorf("%v", err)
	}
	if policy := headers.Get("ratelimit-policy"); len(headers.Get("retry-after")) != 1 || len(policy) != 1 ||
		policy[0] != `"default";q=2;w=60` {
		t.Errorf("%q", policy)
	}
}

func TestNeverIsNoDelay(t *testing.T) {
	client, _ := served(t, grpc.UnaryInterceptor(grpclimit.Unary(limiter(t, nil, 0), grpclimit.Address)))
	_, err := client.Check(ctx, nil)
	if retry, known := retryOf(t, err); known {
		t.Errorf("%v", retry)
	}
}

func TestKey(t *testing.T) {
	client, _ := served(t, grpc.UnaryInterceptor(grpclimit.Unary(limiter(t, nil, 0),
		func(_ context.Context, method string) string {
			if method != grpc_health_v1.Health_Check_FullMethodName {
				return "other"
			}
			return ""
		})))
	for range 3 {
		if _, err := client.Check(ctx, nil); err != nil {
			t.Error(err)
		}
	}
}

// Several rates decide together: each is named in the metadata, and the one that denies for longest ends the call. A
// call without a cost is not limited.
func TestLimits(t *testing.T) {
	limits, err := swlimit.NewLimits(nil, "5/hour; 2/minute")
	if err != nil {
		t.Fatal(err)
	}
	cost := int64(2)
	client, _ := served(t, grpc.UnaryInterceptor(grpclimit.UnaryLimits(limits, grpclimit.Address,
		grpclimit.Cost(func(context.Context, string, any) int64 { return cost }),
		grpclimit.OnDenied(func(_ context.Context, method string, d swlimit.Decision) error {
			return status.Errorf(codes.Aborted, "%s %d", method, d.Limit)
		}), nil)))
	var headers metadata.MD
	if _, err := client.Check(ctx, nil, grpc.Header(&headers)); err != nil {
		t.Fatal(err)
	}
	policies := strings.Join(headers.Get("ratelimit-policy"), ", ")
	if policies != `"default:3600000";q=5;w=3600, "default:60000";q=2;w=60` {
		t.Error(policies)
	}
	cost = 1
	_, err = client.Check(ctx, nil, grpc.Header(&headers))
	if s := status.Convert(err); s.Code() != codes.Aborted || s.Message() != "/grpc.health.v1.Health/Check 2" ||
		len(headers.Get("retry-after")) != 1 {
		t.Errorf("%v, %v", err, headers)
	}
	cost = 0
	if _, err := client.Check(ctx, nil); err != nil {
		t.Error(err)
	}
}

// The address in x-forwarded-for counts where a trusted proxy has connected.
func TestForwarded(t *testing.T) {
	for trusted, granted := range map[string]int{"127.0.0.0/8": 2, "10.0.0.0/8": 1} {
		client, _ := served(t, grpc.UnaryInterceptor(grpclimit.Unary(limiter(t, nil, 1),
			grpclimit.Forwarded(netip.MustParsePrefix(trusted)))))
		passed := 0
		for _, from := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.1"} {
			if _, err := client.Check(metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", from), nil); err == nil {
				passed++
			}
		}
		if passed != granted {
			t.Errorf("%s: %d passed", trusted, passed)
		}
	}
}

func TestFailure(t *testing.T) {
	conn, err := swlimit.NewClient(swlimit.Server{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, policy := range []swlimit.FailurePolicy{swlimit.FailError, swlimit.FailAllow} {
		client, _ := served(t, grpc.UnaryInterceptor(grpclimit.Unary(limiter(t, conn, 1, swlimit.OnFailure(policy)),
			grpclimit.Address)))
		want := map[swlimit.FailurePolicy]codes.Code{swlimit.FailError: codes.Unavailable, swlimit.FailAllow: codes.OK}[policy]
		if _, err := client.Check(ctx, nil); status.Code(err) != want {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

func TestStream(t *testing.T) {
	client, _ := served(t, grpc.StreamInterceptor(grpclimit.Stream(limiter(t, nil, 1), grpclimit.Address)))
	first, err := client.Watch(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Recv(); err != nil {
		t.Fatal(err)
	}
	headers, err := first.Header()
	if got := headers.Get("ratelimit"); err != nil || len(got) != 1 || !strings.HasPrefix(got[0], `"default";r=0;t=`) {
		t.Errorf("%q, %v", got, err)
	}
	second, err := client.Watch(ctx, nil)
	if err == nil {
		_, err = second.Recv()
	}
	if _, known := retryOf(t, err); !known {
		t.Errorf("%v", err)
	}
}

// address is that of a server that pytest has started.
func address(t *testing.T) string {
	t.Helper()
	var ports map[string]int
	if _ = json.Unmarshal([]byte(os.Getenv("SWLIMIT_PORTS")), &ports); ports["main"] == 0 {
		t.Skip("there is no server: run `make test-go`")
	}
	return fmt.Sprintf("127.0.0.1:%d", ports["main"])
}

// A stream holds a place until it ends, however it ends.
func TestHoldStream(t *testing.T) {
	conn, err := swlimit.NewClient(swlimit.Server{Addr: address(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	holds, err := swlimit.NewHolds(conn, 2, 3*time.Second, swlimit.OnFailure(swlimit.FailError),
		swlimit.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	key := rand.Text()
	client, service := served(t, grpc.StreamInterceptor(grpclimit.HoldStream(holds,
		func(context.Context, string) string { return key })))
	began := func(ctx context.Context) error {
		stream, err := client.Watch(ctx, nil)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	going, gone := context.WithCancel(ctx)
	if err := began(going); err != nil {
		t.Fatal(err)
	}
	if err := began(ctx); err != nil {
		t.Fatal(err)
	}
	if retry, known := retryOf(t, began(ctx)); !known || retry <= 0 {
		t.Errorf("%v, %v", retry, known)
	}
	gone()
	if cause := <-service.ended; cause != context.Canceled {
		t.Error(cause)
	}
	for until := time.Now().Add(20 * time.Second); began(ctx) != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the place of a stream whose client has gone is never free")
		}
	}
	if err := holds.Reset(ctx, key); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if cause := <-service.ended; cause != swlimit.ErrLost {
			t.Error(cause)
		}
	}
}
