package swlimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestSlots(t *testing.T) {
	for key, slot := range map[string]int{"123456789": 0x31c3, "": 0, "{}a": slotOf("{}a"), "foo{bar}": slotOf("bar"),
		"foo{bar}{other}": slotOf("bar"), "foo{{bar}}": slotOf("{bar"), "}{bar": slotOf("}{bar")} {
		if got := slotOf(key); got != slot {
			t.Errorf("%q: %d instead of %d", key, got, slot)
		}
	}
	if slotOf("{}a") == slotOf("") || slotOf("foo") != 12182 || slotOf("}{bar") == slotOf("bar") {
		t.Error("an empty tag is none")
	}
}

// A cluster where the script decides; in the end it gets the module.
func TestCluster(t *testing.T) {
	t.Parallel()
	addr := address(t, "cluster")
	t.Run("scripted", func(t *testing.T) {
		client := connect(t, &Cluster{Addrs: []string{"127.0.0.1:1", addr}})
		for range 10 {
			scenario(t, "{"+key()+"}", client)
		}
		backends(t, client, 3, "script")
		for range 10 { // each key's windows are in one slot
			l := must(NewLimits(client, "5/hour; 3/minute", Timeout(20*time.Second), OnFailure(FailError)))
			if d := must(l.Allow(background, key())); !d.Allowed {
				t.Errorf("%+v", d)
			}
		}
		var refused RefusedError
		l := limiter(t, client, 10)
		if _, err := AllowAll(background, l.Request("{a}", 1), l.Request("{b}", 1)); !errors.As(err, &refused) ||
			!strings.HasPrefix(err.Error(), "CROSSSLOT ") {
			t.Error(err)
		}
		if _, err := Admit(background, []Part{l.Request("{a}", 1), holding(t, client, 1).Request("{b}", 1)}); !errors.As(err,
			&refused) || !strings.HasPrefix(err.Error(), "CROSSSLOT ") {
			t.Error(err)
		}
		hold := must(holding(t, client, 1).TryAcquire(background, "held"))
		got := make(chan *Hold)
		go func() { got <- must(holding(t, client, 1).Acquire(background, "held")) }()
		eventually(t, "one waits", func() bool { return inLine(client, "held") == 1 })
		hold.Release()
		(<-got).Release()
	})
	t.Run("a slot moves", func(t *testing.T) { testMovingSlot(t, addr) })
	t.Run("replies are lost", func(t *testing.T) { testLossyCluster(t, addr) })
	t.Run("counted in the background", func(t *testing.T) {
		countsWhatItGranted(t, func() Transport { return &Cluster{Addrs: []string{addr}} })
	})
	t.Run("not a cluster", func(t *testing.T) {
		client := connect(t, &Cluster{Addrs: []string{address(t, "bare")}})
		scenario(t, key(), client)
		backends(t, client, 1, "script")
	})
	t.Run("taken over", func(t *testing.T) {
		client := connect(t, &Cluster{Addrs: []string{addr}})
		var keys []string
		for range 20 {
			k := "{" + key() + "}"
			l := limiter(t, client, 10, Direct)
			must(AllowAll(background, l.Request(k+"1", 2), l.Request(k+"2", 3)))
			keys = append(keys, k)
		}
		backends(t, client, 3, "script")
		loadModule(t, addr)
		newer := connect(t, &Cluster{Addrs: []string{addr}})
		for i, k := range keys {
			first, second := client, newer
			if i%2 == 0 {
				first, second = newer, client
			}
			for at, client := range []*Client{first, second} {
				l := limiter(t, client, 10, Direct)
				all := must(AllowAll(background, l.Request(k+"1", 1), l.Request(k+"2", 1)))
				one, _ := all.Each[0].Remaining()
				two, _ := all.Each[1].Remaining()
				if one != 7-int64(at) || two != 6-int64(at) {
					t.Errorf("%d and %d are left: %+v", one, two, all)
				}
			}
		}
		if n := client.takenOver.Load() + newer.takenOver.Load(); n < int64(len(keys)) || n > 2*int64(len(keys)) {
			t.Errorf("%d keys were taken over of %d", n, 2*len(keys))
		}
		backends(t, newer, 3, "module")
	})
	t.Run("a server dies", func(t *testing.T) {
		client, k := connect(t, &Cluster{Addrs: []string{addr}}), key()
		l := limiter(t, client, 1_000_000, Timeout(500*time.Millisecond))
		must(l.Allow(background, k))
		dead := must(client.transport.Primary(background, k)).Addr
		_, _ = connect(t, Server{Addr: dead}, FollowCluster(ClusterOff)).ask(background, other("", "SHUTDOWN", "NOSAVE"),
			asking{timeout: 20 * time.Second})
		eventually(t, "its replica grants", func() bool {
			d, err := l.Allow(background, k)
			return err == nil && d.Source == FromServer
		})
		if now := must(client.transport.Primary(background, k)).Addr; now == dead {
			t.Error("the same address")
		}
		eventually(t, "it is asked for no longer", func() bool {
			for _, state := range client.Servers() {
				if state.Addr == dead {
					return false
				}
			}
			return true
		})
		fresh := connect(t, &Cluster{Addrs: []string{dead}})
		fresh.Close()
		if _, err := limiter(t, fresh, 1).Allow(background, k); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// backends says that so many servers were asked, and what decides at each.
func backends(t *testing.T, client *Client, most int, backend string) {
	t.Helper()
	states := client.Servers()
	if len(states) == 0 || len(states) > most {
		t.Errorf("%+v", states)
	}
	for _, state := range states {
		if state.Backend != backend || state.State != "up" {
			t.Errorf("%+v", state)
		}
	}
}

// nodes are Conns to each server of a cluster, by its address, and the ids of those that have slots.
func nodes(t *testing.T, addr string) (conns map[string]*Client, ids map[string]string) {
	t.Helper()
	conns, ids = map[string]*Client{}, map[string]string{}
	all := ask(t, connect(t, Server{Addr: addr}, FollowCluster(ClusterOff)), "CLUSTER", "NODES").(string)
	for _, line := range strings.Split(strings.TrimSpace(all), "\n") {
		fields := strings.Fields(line)
		addr, _, _ := strings.Cut(fields[1], "@")
		conns[addr] = connect(t, Server{Addr: addr}, FollowCluster(ClusterOff))
		if strings.Contains(fields[2], "master") {
			ids[addr] = fields[0]
		}
	}
	return conns, ids
}

func loadModule(t *testing.T, addr string) {
	t.Helper()
	conns, _ := nodes(t, addr)
	for _, client := range conns {
		ask(t, client, "MODULE", "LOAD", os.Getenv("SWLIMIT_MODULE"))
	}
}

// All that is asked while a slot moves is decided once, wherever the key is.
func testMovingSlot(t *testing.T, addr string) {
	client := connect(t, &Cluster{Addrs: []string{addr}})
	k := "{" + key() + "}"
	l, holds := limiter(t, client, 1_000_000), holding(t, client, 3)
	from := must(client.transport.Primary(background, k)).Addr
	conns, ids := nodes(t, addr)
	var to string
	for addr := range ids {
		if addr != from {
			to = addr
		}
	}
	var granted, held atomic.Int64
	var over atomic.Bool
	var running sync.WaitGroup
	for range 10 {
		running.Go(func() {
			for !over.Load() {
				d, err := l.Allow(background, k)
				granted.Add(d.Granted)
				var hold *Hold
				if err == nil {
					hold, err = holds.Acquire(background, k+"held")
				}
				if err != nil {
					t.Error(err)
					return
				}
				held.Add(1)
				hold.Release()
				// Half of its keys are elsewhere at times.
				if _, err := AllowAll(background, l.Request(k+"1", 1), l.Request(k+"2", 1)); err != nil &&
					!errors.Is(err, ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	slot := number(int64(slotOf(k)))
	more := func() {
		was, wasHeld := granted.Load(), held.Load()
		eventually(t, "it goes on", func() bool { return granted.Load() > was+20 && held.Load() > wasHeld+20 })
	}
	more()
	ask(t, conns[to], "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from])
	ask(t, conns[from], "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])
	more()
	host, port, _ := net.SplitHostPort(to)
	for _, name := range []string{k + "1", k, k + "held", k + "2"} {
		ask(t, conns[from], "MIGRATE", host, port, name, "0", "5000")
		if name != k+"1" {
			continue
		}
		time.Sleep(20 * time.Millisecond) // TRYAGAIN
	}
	more()
	ask(t, conns[to], "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
	ask(t, conns[from], "CLUSTER", "SETSLOT", slot, "NODE", ids[to])
	more()
	eventually(t, "the slot's new server is known", func() bool {
		return must(client.transport.Primary(background, k)).Addr == to
	})
	over.Store(true)
	running.Wait()
	left, _ := must(l.Peek(background, k)).Remaining()
	if counted := 1_000_000 - left; counted != granted.Load() {
		t.Errorf("%d counted, %d granted", counted, granted.Load())
	}
	if all := must(holds.Holders(background, k+"held", 10)); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// Each connection to the cluster's servers leads through a relay that loses replies.
func testLossyCluster(t *testing.T, addr string) {
	_, ids := nodes(t, addr)
	relays := map[string]*relay{}
	for addr := range ids {
		relays[addr] = newRelay(t, addr, 20)
	}
	through := Server{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, relays[addr].addr)
	}}
	lost := func() (n int64) {
		for _, r := range relays {
			n += r.lost.Load()
		}
		return n
	}
	for n := 0; n < 2 || lost() == 0; n++ {
		if n == 50 {
			t.Fatal("no connection was lost")
		}
		parallel := []int{60, 1000}[n%2]
		testCancelled(t, &Cluster{Addrs: []string{addr}, Server: through}, &Cluster{Addrs: []string{addr}}, parallel, lost)
	}
}

// A slot that no server has is no other's business, and asked for until one has it.
func TestSlotsThatNobodyHas(t *testing.T) {
	var whole atomic.Bool
	addr := fake(t, func(addr string, words []any) string {
		switch _, port, _ := net.SplitHostPort(addr); {
		case words[0] == "CLUSTER" && whole.Load():
			return fmt.Sprintf("*1\r\n*3\r\n:0\r\n:%d\r\n*2\r\n$0\r\n\r\n:%s\r\n", slots-1, port)
		case words[0] == "CLUSTER":
			slot := slotOf("served")
			return fmt.Sprintf("*1\r\n*3\r\n:%d\r\n:%d\r\n*2\r\n$0\r\n\r\n:%s\r\n", slot, slot, port)
		case words[0] == "SWLIMIT.ALLOW":
			return "*5\r\n:1\r\n:9\r\n:8\r\n:0\r\n:1000\r\n"
		}
		return noReply
	})
	l := limiter(t, connect(t, &Cluster{Addrs: []string{addr}}), 9, Direct)
	for range 3 {
		if _, err := l.Allow(background, "other"); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		if d, err := l.Allow(background, "served"); err != nil || !d.Allowed() {
			t.Errorf("%+v, %v", d, err)
		}
	}
	whole.Store(true)
	eventually(t, "all slots are served", func() bool {
		_, err := l.Allow(background, "other")
		return err == nil
	})
}

// Nobody has failed before the first server has had its time.
func TestNoServerOfAClusterHasAnswered(t *testing.T) {
	silent := must(net.Listen("tcp", "127.0.0.1:0"))
	defer silent.Close()
	cluster := &Cluster{Addrs: []string{silent.Addr().String()}}
	connect(t, cluster)
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, err := cluster.Primary(ctx, "k"); err == nil || err.Error() != "no server of the cluster has answered yet" {
		t.Error(err)
	}
}

// A caller who goes while a slot moves gets its own error, and nothing is decided in its place.
func TestCancelledWhileASlotMoves(t *testing.T) {
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	addr := fake(t, func(_ string, words []any) string {
		if words[0] == "SWLIMIT.PEEK" {
			time.AfterFunc(5*time.Millisecond, cancel)
			return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
		}
		if words[0] == "SWLIMIT.ALLOW" {
			return "-ERR wrong number of arguments\r\n"
		}
		return noReply
	})
	l := limiter(t, connect(t, Server{Addr: addr}), 1, OnFailure(FailAllow))
	if d, err := l.Peek(ctx, "k"); err != context.Canceled {
		t.Errorf("%+v, %v", d, err)
	}
}

// switching is the Transport of a primary that another follows.
type switching struct {
	now    atomic.Pointer[Server]
	client *Client
}

func (s *switching) Primary(context.Context, string) (Server, error) { return *s.now.Load(), nil }
func (s *switching) Moved(context.Context, string) (Server, error) {
	return Server{}, errors.New("nowhere")
}
func (s *switching) begin(c *Client) error { s.client = c; return nil }
func (s *switching) unavailable(string)    {}
func (s *switching) end()                  {}

// Who waits in the queue of a server that is the primary no longer waits at the next one.
func TestWaitsLeaveWithThePrimary(t *testing.T) {
	first, transport, k := Server{Addr: address(t, "main")}, new(switching), key()
	transport.now.Store(&first)
	client := connect(t, transport)
	l := limiter(t, client, 1)
	must(l.Allow(background, k))
	got := make(chan error, 1)
	go func() { got <- l.Wait(background, k) }()
	direct := dial(t)
	eventually(t, "it waits", func() bool {
		for _, line := range strings.Split(ask(t, direct, "CLIENT", "LIST").(string), "\n") {
			if strings.Contains(line, "flags=b") && strings.Contains(line, "cmd=swlimit.acquire") {
				return true
			}
		}
		return false
	})
	old := must(client.serverAt(first))
	transport.now.Store(&Server{Addr: address(t, "bare")})
	client.leave(first.Addr)
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits still")
	}
	if slices.ContainsFunc(old.connections, func(cn *connection) bool { return !cn.isGone() }) {
		t.Error("a connection to a server that was left")
	}
}

// What ends a wait is not sent to another server, where it would end somebody else's.
func TestWaitsEndWhereTheyAre(t *testing.T) {
	var waits, unblocked atomic.Bool
	addr := func() string {
		return fake(t, func(_ string, words []any) string {
			switch words[0] {
			case "SWLIMIT.ACQUIRE":
				if words[5] != "0ms" {
					waits.Store(true)
					return ""
				}
				return "*5\r\n:0\r\n:1\r\n:0\r\n:1000\r\n:1000\r\n"
			case "SWLIMIT.ALLOW":
				return "-ERR wrong number of arguments\r\n"
			case "CLIENT":
				unblocked.Store(true)
			}
			return noReply
		})
	}
	transport := new(switching)
	transport.now.Store(&Server{Addr: addr()})
	client := connect(t, transport)
	ctx, cancel := context.WithCancel(background)
	got := make(chan error, 1)
	go func() { got <- limiter(t, client, 1).Wait(ctx, "k") }()
	eventually(t, "it waits", waits.Load)
	transport.now.Store(&Server{Addr: addr()})
	cancel()
	if err := <-got; err != context.Canceled {
		t.Error(err)
	}
	eventually(t, "it is over", func() bool { return client.pending.Load() == 0 })
	if unblocked.Load() {
		t.Error("another server was asked to end it")
	}
}

// Close does not wait for a Dial that ignores its context.
func TestCloseLeavesDials(t *testing.T) {
	dialling, over := make(chan bool, 1), make(chan bool)
	defer close(over)
	client := must(NewClient(Server{Dial: func(context.Context, string, string) (net.Conn, error) {
		dialling <- true
		<-over
		return nil, net.ErrClosed
	}}))
	go func() {
		_, _ = must(New(client, Quota{Limit: 1, Window: time.Minute}, Direct)).Allow(background, "k")
	}()
	<-dialling
	closed := make(chan bool)
	go func() { client.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("it waits still")
	}
}
