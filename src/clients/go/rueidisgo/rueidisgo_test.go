package rueidisgo_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/rueidisgo"
)

func address(t *testing.T, name string) string {
	var ports map[string]int
	_ = json.Unmarshal([]byte(os.Getenv("SWLIMIT_PORTS")), &ports)
	if ports[name] == 0 {
		t.Skipf("there is no server %q: run `make test-go`", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[name])
}

// A single server and a cluster are asked as a client with the same option would ask them.
func TestDecides(t *testing.T) {
	for name, servers := range map[string]int{"main": 1, "cluster": 3} {
		t.Run(name, func(t *testing.T) {
			client, err := rueidisgo.New(rueidis.ClientOption{InitAddress: []string{address(t, name)}},
				swlimit.ClientName("by-rueidis"))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			l, err := swlimit.New(client, swlimit.Quota{Limit: 3, Window: time.Minute}, swlimit.OnFailure(swlimit.FailError),
				swlimit.Timeout(20*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 40 * servers {
				key := rand.Text()
				d, err := l.AllowN(context.Background(), key, 3)
				if err != nil || !d.Allowed() || d.Source != swlimit.FromServer {
					t.Fatalf("%d: %+v, %v", i, d, err)
				}
				if d, err := l.Allow(context.Background(), key); err != nil || d.Allowed() {
					t.Fatalf("%d: %+v, %v", i, d, err)
				}
			}
			if n := len(client.Servers()); n != servers {
				t.Errorf("%d servers", n)
			}
		})
	}
}

// What cannot be asked is refused, and no error repeats a password.
func TestRefuses(t *testing.T) {
	for _, option := range []rueidis.ClientOption{{}, {InitAddress: []string{"127.0.0.1:1"}, ReplicaOnly: true}} {
		if _, err := rueidisgo.New(option); err == nil {
			t.Errorf("%+v", option)
		}
	}
	for _, url := range []string{"redis://ann:hunter2@[::1", "http://ann:hunter2@host"} {
		if _, err := rueidisgo.Open(url, "1/minute"); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Error(err)
		}
	}
}
