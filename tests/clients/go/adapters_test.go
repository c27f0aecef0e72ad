package tests

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
	"go.uber.org/goleak"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/goredis"
	"github.com/swlimit/swlimit/src/clients/go/valkeygo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial counts the connections that are opened, and may take them elsewhere.
type dial func(ctx context.Context, network, addr string) (net.Conn, error)

func (d dial) valkey() func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	if d == nil {
		return nil
	}
	return func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		return d(ctx, "tcp", addr)
	}
}

// adapters make a Conn of what a library's client is made of.
var adapters = []struct {
	name            string
	single, cluster func(addr string, through dial) (*swlimit.Client, error)
	encrypted       func(addr string, config *tls.Config) (*swlimit.Client, error)
	failover        func(sentinel, name string) (*swlimit.Client, error)
}{
	{
		name: "go-redis",
		single: func(addr string, through dial) (*swlimit.Client, error) {
			client := redis.NewClient(&redis.Options{Addr: addr, Dialer: through})
			defer client.Close()
			return goredis.New(client)
		},
		cluster: func(addr string, through dial) (*swlimit.Client, error) {
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Dialer: through})
			defer client.Close()
			return goredis.New(client)
		},
		encrypted: func(addr string, config *tls.Config) (*swlimit.Client, error) {
			client := redis.NewClient(&redis.Options{Addr: addr, TLSConfig: config})
			defer client.Close()
			return goredis.New(client)
		},
		failover: func(sentinel, name string) (*swlimit.Client, error) {
			return goredis.FromFailover(&redis.FailoverOptions{MasterName: name, SentinelAddrs: []string{sentinel}})
		},
	},
	{
		name: "valkey-go",
		single: func(addr string, through dial) (*swlimit.Client, error) {
			return valkeygo.New(valkey.ClientOption{InitAddress: []string{addr}, DialCtxFn: through.valkey()})
		},
		cluster: func(addr string, through dial) (*swlimit.Client, error) {
			return valkeygo.New(valkey.ClientOption{InitAddress: []string{"127.0.0.1:1", addr}, DialCtxFn: through.valkey()})
		},
		encrypted: func(addr string, config *tls.Config) (*swlimit.Client, error) {
			return valkeygo.New(valkey.ClientOption{InitAddress: []string{addr}, TLSConfig: config, ForceSingleClient: true})
		},
		failover: func(sentinel, name string) (*swlimit.Client, error) {
			return valkeygo.New(valkey.ClientOption{InitAddress: []string{sentinel},
				Sentinel: valkey.SentinelOption{MasterSet: name}})
		},
	},
}

// address is that of a server that pytest has started: SWLIMIT_PORTS says which there are.
func address(t *testing.T, name string) string {
	t.Helper()
	var ports map[string]int
	_ = json.Unmarshal([]byte(os.Getenv("SWLIMIT_PORTS")), &ports)
	if ports[name] == 0 {
		t.Skipf("there is no server %q: run `make test-go`", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[name])
}

func limiter(t *testing.T, conn *swlimit.Client, limit int64, options ...swlimit.Option) *swlimit.Limiter {
	t.Helper()
	options = append([]swlimit.Option{swlimit.OnFailure(swlimit.FailError), swlimit.Timeout(20 * time.Second)}, options...)
	l, err := swlimit.New(conn, swlimit.Quota{Limit: limit, Window: time.Minute}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// closing closes a Conn with the test.
func closing(t *testing.T, conn *swlimit.Client, err error) *swlimit.Client {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func eventually(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for until := time.Now().Add(60 * time.Second); !isSo(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("never:", what)
		}
	}
}

// decides asks for commands of one key and of several, and for a hold.
func decides(t *testing.T, conn *swlimit.Client) {
	t.Helper()
	ctx := context.Background()
	l := limiter(t, conn, 3)
	holds, err := swlimit.NewHolds(conn, 1, time.Minute, swlimit.OnFailure(swlimit.FailError), swlimit.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		key := rand.Text()
		for want := range 4 {
			if d, err := l.Allow(ctx, key); err != nil || d.Allowed() != (want < 3) {
				t.Fatalf("%d: %+v, %v", want, d, err)
			}
		}
		// The keys are the third word and those behind it, and a cluster's server is found by them.
		all, err := swlimit.AllowAll(ctx, l.Request("{"+key+"}", 1), l.Request("{"+key+"}:other", 3))
		if err != nil || !all.Allowed {
			t.Fatalf("%+v, %v", all, err)
		}
		a, err := swlimit.Admit(ctx, []swlimit.Part{l.Request("{"+key+"}", 2), holds.Request("{"+key+"}:hold", 1)})
		if err != nil || !a.Allowed {
			t.Fatalf("%+v, %v", a, err)
		}
		if _, err := holds.TryAcquire(ctx, "{"+key+"}:hold"); !errors.Is(err, swlimit.ErrDenied) {
			t.Fatal(err)
		}
		if changes, err := a.Settle(ctx, 1); err != nil || len(changes) != 1 || changes[0] != -1 {
			t.Fatal(changes, err)
		}
	}
}

func TestOpen(t *testing.T) {
	for name, open := range map[string]func(string, string, ...swlimit.Option) (*swlimit.Limiter, error){
		"go-redis": goredis.Open, "valkey-go": valkeygo.Open} {
		l, err := open("redis://"+address(t, "main"), "2/minute", swlimit.Timeout(20*time.Second),
			swlimit.OnFailure(swlimit.FailError))
		if err != nil {
			t.Fatal(name, err)
		}
		key := rand.Text()
		for want := range 3 {
			if d, err := l.Allow(context.Background(), key); err != nil || d.Allowed() != (want < 2) {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		}
		l.Close()
		if _, err := l.Allow(context.Background(), rand.Text()); !errors.Is(err, swlimit.ErrClosed) {
			t.Error(name, err)
		}
		for _, wrong := range [][2]string{{"http://" + address(t, "main"), "2/minute"},
			{"redis://" + address(t, "main"), "2"}} {
			if _, err := open(wrong[0], wrong[1]); err == nil {
				t.Error(name, wrong)
			}
		}
	}
}

func TestOpenLimits(t *testing.T) {
	for name, open := range map[string]func(string, string, ...swlimit.Option) (*swlimit.Limits, error){
		"go-redis": goredis.OpenLimits, "valkey-go": valkeygo.OpenLimits} {
		l, err := open("redis://"+address(t, "main"), "9/hour; 2/minute", swlimit.Timeout(20*time.Second),
			swlimit.OnFailure(swlimit.FailError))
		if err != nil {
			t.Fatal(name, err)
		}
		key := rand.Text()
		for want := range 3 {
			if d, err := l.Allow(context.Background(), key); err != nil || d.Allowed != (want < 2) {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		}
		l.Close()
		if _, err := l.Allow(context.Background(), rand.Text()); !errors.Is(err, swlimit.ErrClosed) {
			t.Error(name, err)
		}
		for _, wrong := range [][2]string{{"http://" + address(t, "main"), "2/minute"},
			{"redis://" + address(t, "main"), "2/minute; 3/60s"}} {
			if _, err := open(wrong[0], wrong[1]); err == nil {
				t.Error(name, wrong)
			}
		}
	}
}

func TestAdapters(t *testing.T) {
	for _, adapter := range adapters {
		t.Run(adapter.name, func(t *testing.T) {
			t.Run("single", func(t *testing.T) {
				conn, err := adapter.single(address(t, "main"), nil)
				decides(t, closing(t, conn, err))
			})
			t.Run("cluster", func(t *testing.T) {
				conn, err := adapter.cluster(address(t, "cluster"), nil)
				decides(t, closing(t, conn, err))
				if n := len(conn.Servers()); n != 3 {
					t.Errorf("%d servers were asked", n)
				}
				l := limiter(t, conn, 1)
				_, err = swlimit.AllowAll(context.Background(), l.Request("{a}", 1), l.Request("{b}", 1))
				if err == nil || !strings.HasPrefix(err.Error(), "CROSSSLOT ") {
					t.Error(err)
				}
			})
			t.Run("encrypted", func(t *testing.T) {
				roots := x509.NewCertPool()
				authority, err := os.ReadFile(os.Getenv("SWLIMIT_CA"))
				if err != nil || !roots.AppendCertsFromPEM(authority) {
					t.Skip("there is no authority: run `make test-go`")
				}
				conn, err := adapter.encrypted(address(t, "tls"), &tls.Config{RootCAs: roots})
				decides(t, closing(t, conn, err))
			})
			t.Run("failover", func(t *testing.T) {
				conn, err := adapter.failover(address(t, "sentinel"), "main")
				testFailover(t, closing(t, conn, err))
			})
			t.Run("a lost reply", func(t *testing.T) {
				testLostReply(t, func(through dial) (*swlimit.Client, error) {
					return adapter.single(address(t, "main"), through)
				})
			})
			t.Run("contexts", func(t *testing.T) {
				testContexts(t, func(addr string, through dial) *swlimit.Client {
					conn, err := adapter.single(addr, through)
					return closing(t, conn, err)
				})
			})
			t.Run("changes", func(t *testing.T) {
				conn, err := adapter.single(address(t, "main"), nil)
				testChanges(t, closing(t, conn, err))
			})
		})
	}
}

// After a failover the new primary is asked, and no other.
func testFailover(t *testing.T, conn *swlimit.Client) {
	l, ctx, key := limiter(t, conn, 1000, swlimit.Timeout(50*time.Millisecond)), context.Background(), rand.Text()
	var asked string
	granted := func() bool {
		d, err := l.Allow(ctx, key)
		// None is known for a moment, while the primary is another's.
		if servers := conn.Servers(); err == nil && d.Source == swlimit.FromServer && len(servers) > 0 {
			asked = servers[0].Addr
		}
		return err == nil
	}
	eventually(t, "granted", granted)
	before := asked
	client := redis.NewSentinelClient(&redis.Options{Addr: address(t, "sentinel")})
	defer client.Close()
	eventually(t, "a failover begins", func() bool { return client.Failover(ctx, "main").Err() == nil })
	eventually(t, "the new primary is asked", func() bool { return granted() && asked != before })
	if servers := conn.Servers(); len(servers) != 1 {
		t.Errorf("%+v", servers)
	}
}

// deaf is a connection that closes where its first reply to a command of the module's would be read.
type deaf struct {
	net.Conn
	asked atomic.Bool
	armed *atomic.Bool
}

func (d *deaf) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "SWLIMIT.ALLOW\r\n") && strings.Contains(string(b), "lost:") {
		d.asked.Store(true)
	}
	return d.Conn.Write(b)
}

func (d *deaf) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.asked.Load() && d.armed.CompareAndSwap(true, false) {
		d.Conn.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// What the server has executed is not sent again, though its reply is lost: it would count twice.
func testLostReply(t *testing.T, connect func(dial) (*swlimit.Client, error)) {
	armed := new(atomic.Bool)
	armed.Store(true)
	conn, err := connect(func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &deaf{Conn: conn, armed: armed}, err
	})
	closing(t, conn, err)
	l, ctx, key := limiter(t, conn, 10, swlimit.Direct), context.Background(), "lost:"+rand.Text()
	if _, err := l.Allow(ctx, key); !errors.Is(err, swlimit.ErrUnavailable) || armed.Load() {
		t.Fatal(err)
	}
	d, err := l.Peek(ctx, key)
	if left, _ := d.Remaining(); err != nil || left != 9 {
		t.Errorf("%d of 10 are left, %v", left, err)
	}
}

// A call ends with its context, and its connection does not: what was granted to nobody goes back over it.
func testContexts(t *testing.T, connect func(string, dial) *swlimit.Client) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	far := limiter(t, connect(silent.Addr().String(), nil), 10, swlimit.Timeout(time.Hour))
	soon, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if _, err := far.Allow(soon, "k"); !errors.Is(err, swlimit.ErrUnavailable) {
		t.Error(err)
	}
	var dials atomic.Int64
	conn := connect(address(t, "main"), func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
	l, key := limiter(t, conn, 1_000_000, swlimit.Direct), rand.Text()
	if _, err := l.Peek(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	opened, granted, cancelled := dials.Load(), int64(0), 0
	for i := range 500 {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Duration(i%100)*2*time.Microsecond, cancel)
		d, err := l.Allow(ctx, key)
		switch {
		case err == nil:
			granted += d.Granted
		case errors.Is(err, context.Canceled):
			cancelled++
		default:
			t.Fatal(err)
		}
		cancel()
	}
	eventually(t, "what was granted to nobody goes back", func() bool {
		d, err := l.Peek(context.Background(), key)
		left, _ := d.Remaining()
		return err == nil && 1_000_000-left == granted
	})
	if n := dials.Load() - opened; n != 0 || cancelled == 0 {
		t.Errorf("%d connections more after %d were cancelled", n, cancelled)
	}
}

// A denial is known here until the server says that the key has changed.
func testChanges(t *testing.T, conn *swlimit.Client) {
	client := redis.NewClient(&redis.Options{Addr: address(t, "main"), MaxRetries: -1})
	defer client.Close()
	l, ctx, key := limiter(t, conn, 1), context.Background(), rand.Text()
	eventually(t, "known to be denied", func() bool {
		d, err := l.Allow(ctx, key)
		return err == nil && d.Source == swlimit.FromCache
	})
	if err := client.Do(ctx, "SWLIMIT.REFUND", key, 1).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "granted again", func() bool {
		d, err := l.Allow(ctx, key)
		return err == nil && d.Allowed()
	})
}

func TestRefusedByName(t *testing.T) {
	of := func(client redis.UniversalClient) error {
		defer client.Close()
		_, err := goredis.New(client)
		return err
	}
	behind := &redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}}
	_, replicas := valkeygo.New(valkey.ClientOption{InitAddress: []string{"127.0.0.1:1"}, ReplicaOnly: true})
	_, nowhere := valkeygo.New(valkey.ClientOption{})
	for name, err := range map[string]error{
		"redis.Ring":   of(redis.NewRing(&redis.RingOptions{})),
		"FromFailover": of(redis.NewFailoverClient(behind)),
		"ClusterSlots": of(redis.NewClusterClient(&redis.ClusterOptions{
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return nil, nil }})),
		"need Addrs":  of(redis.NewClusterClient(&redis.ClusterOptions{})),
		"ReplicaOnly": replicas,
		"InitAddress": nowhere,
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Options that no client has completed mean what they would to one.
func TestOptions(t *testing.T) {
	for addr, want := range map[string]string{"": "tcp localhost:6379", "/run/redis.sock": "unix /run/redis.sock"} {
		dialled := make(chan string, 10)
		conn, err := goredis.FromOptions(&redis.Options{Addr: addr,
			Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
				dialled <- network + " " + addr
				return nil, net.ErrClosed
			}})
		_, _ = limiter(t, closing(t, conn, err), 1, swlimit.Direct).Allow(context.Background(), "k")
		if got := <-dialled; got != want {
			t.Errorf("%q: %s", addr, got)
		}
	}
}
