package swlimit

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// port is that of a server that pytest has started for these tests: SWLIMIT_PORTS says which there are.
func port(t testing.TB, name string) int {
	t.Helper()
	var ports map[string]int
	_ = json.Unmarshal([]byte(os.Getenv("SWLIMIT_PORTS")), &ports)
	if ports[name] == 0 {
		t.Skipf("there is no server %q: run `make test-go`", name)
	}
	return ports[name]
}

func address(t testing.TB, name string) string { return fmt.Sprintf("127.0.0.1:%d", port(t, name)) }

func connect(t testing.TB, transport Transport, options ...ClientOption) *Client {
	t.Helper()
	client := must(NewClient(transport, options...))
	t.Cleanup(func() { client.Close() })
	return client
}

func dial(t testing.TB) *Client { return connect(t, Server{Addr: address(t, "main")}) }

func limiter(t testing.TB, client *Client, limit int64, options ...Option) *Limiter {
	t.Helper()
	// Generous, as machines are busy.
	options = append([]Option{Timeout(20 * time.Second), OnFailure(FailError)}, options...)
	l, err := New(client, Quota{Limit: limit, Window: time.Minute}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func key() string { return "go:" + rand.Text() }

// must is what nothing has failed at.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, isSo func() bool) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); !isSo(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("never:", what)
		}
	}
}

// serve has a function talk to each client of an address, and closes its connection after that.
func serve(t *testing.T, addr string, talk func(net.Conn)) net.Listener {
	t.Helper()
	listener := must(net.Listen("tcp", addr))
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				talk(client)
			}()
		}
	}()
	return listener
}

// fake is the address of a server whose replies are what a function says to its address and a command's words.
func fake(t *testing.T, reply func(addr string, words []any) string) string {
	t.Helper()
	return serve(t, "127.0.0.1:0", func(client net.Conn) {
		addr := client.LocalAddr().String()
		for r := bufio.NewReader(client); ; {
			words, err := readReply(r, 0)
			if err != nil {
				return
			}
			if _, err := io.WriteString(client, reply(addr, words.([]any))); err != nil {
				return
			}
		}
	}).Addr().String()
}

// noReply is what a server that has nothing says to how a connection begins.
const noReply = "-ERR unknown command\r\n"

// background is a context without an end.
var background = context.Background()

func (c Count) all() int64 { return c.Granted + c.Denied }
