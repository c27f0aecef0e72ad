package goredis_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/swlimit/swlimit/src/go"
	"github.com/swlimit/swlimit/src/go/goredis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// address is that of a server that pytest has started: SWLIMIT_PORTS says which there are.
func address(t testing.TB, name string) string {
	t.Helper()
	var ports map[string]int
	_ = json.Unmarshal([]byte(os.Getenv("SWLIMIT_PORTS")), &ports)
	if ports[name] == 0 {
		t.Skipf("there is no server %q: run `make test-go`", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[name])
}

func decides(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	conn, err := goredis.New(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx := context.Background()
	limiter, err := swlimit.New(conn, swlimit.Quota{Limit: 3, Window: time.Minute},
		swlimit.OnFailure(swlimit.Error), swlimit.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		key := rand.Text()
		for want := range 4 {
			if d, err := limiter.Allow(ctx, key); err != nil || d.Allowed() != (want < 3) {
				t.Fatalf("%d: %+v, %v", want, d, err)
			}
		}
		other := fmt.Sprintf("{%s}:other", key)
		all, err := swlimit.AllowAll(ctx, limiter.Request("{"+key+"}", 1), limiter.Request(other, 3))
		if err != nil || !all.Allowed {
			t.Fatalf("%+v, %v", all, err)
		}
	}
}

func TestClient(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: address(t, "main")})
	defer client.Close()
	decides(t, client)
}

func TestCluster(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address(t, "cluster")}})
	defer client.Close()
	decides(t, client)
}

func TestTLS(t *testing.T) {
	roots := x509.NewCertPool()
	authority, err := os.ReadFile(os.Getenv("SWLIMIT_CA"))
	if err != nil || !roots.AppendCertsFromPEM(authority) {
		t.Skip("there is no authority: run `make test-go`")
	}
	client := redis.NewClient(&redis.Options{Addr: address(t, "tls"), TLSConfig: &tls.Config{RootCAs: roots}})
	defer client.Close()
	decides(t, client)
}

func TestRefusesByName(t *testing.T) {
	behind := &redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{"127.0.0.1:1"}}
	for name, client := range map[string]redis.UniversalClient{
		"redis.Ring":   redis.NewRing(&redis.RingOptions{}),
		"FromFailover": redis.NewFailoverClient(behind),
	} {
		if _, err := goredis.New(client); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		client.Close()
	}
}

func TestFailover(t *testing.T) {
	sentinel := address(t, "sentinel")
	conn, err := goredis.FromFailover(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	limiter, err := swlimit.New(conn, swlimit.Quota{Limit: 1000, Window: time.Minute}, swlimit.OnFailure(swlimit.Error))
	if err != nil {
		t.Fatal(err)
	}
	ctx, key := context.Background(), rand.Text()
	granted := func() (addr string) {
		for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			if d, err := limiter.Allow(ctx, key); err == nil && d.Source == swlimit.FromServer {
				return conn.Servers()[0].Addr
			}
		}
		t.Fatal("never granted")
		return ""
	}
	before := granted()
	client := redis.NewSentinelClient(&redis.Options{Addr: sentinel})
	defer client.Close()
	if err := client.Failover(ctx, "main").Err(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(60 * time.Second); granted() == before; {
		if time.Now().After(until) {
			t.Fatal("the old primary is still asked")
		}
	}
	if servers := conn.Servers(); len(servers) != 1 {
		t.Errorf("%+v", servers)
	}
}
