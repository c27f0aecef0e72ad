package goredis

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/swlimit/swlimit/src/go"
)

// askSentinel is the time between two questions to sentinels about the primary.
const askSentinel = time.Second

// FromFailover returns a Conn to the primary that sentinels name. All of them announce a new one, and one is asked
// each second. Of several answers the one with the largest config-epoch counts, so that a stale sentinel leads nobody
// back. On a change the connections to the old primary are closed at once.
//
// A primary that is cut off together with its clients goes on granting: only min-replicas-to-write of the server
// helps.
func FromFailover(options *redis.FailoverOptions) (*swlimit.Conn, error) {
	if options.MasterName == "" || len(options.SentinelAddrs) == 0 {
		return nil, errors.New("goredis: FailoverOptions need a MasterName and SentinelAddrs")
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &failover{options: options, ctx: ctx, cancel: cancel, known: make(chan struct{}), epoch: -1}
	return swlimit.NewConn(f), nil
}

type failover struct {
	options *redis.FailoverOptions
	ctx     context.Context
	cancel  context.CancelFunc
	begin   sync.Once
	running sync.WaitGroup
	left    func(addr string) // has a Conn leave a server

	mu      sync.Mutex
	primary string
	epoch   int64
	known   chan struct{} // closed once there is a primary
}

// OnLeave says who closes the connections to a server that is no longer the primary.
func (f *failover) OnLeave(left func(addr string)) { f.left = left }

// Close ends what goes on beside.
func (f *failover) Close() error {
	f.cancel()
	f.begin.Do(func() {})
	f.running.Wait()
	return nil
}

func (f *failover) Primary(ctx context.Context, _ string) (swlimit.Server, error) {
	f.begin.Do(func() {
		for _, addr := range f.options.SentinelAddrs {
			f.running.Go(func() { f.follow(addr) })
		}
	})
	select {
	case <-f.known:
	default:
		select {
		case <-f.known:
		case <-ctx.Done():
			return swlimit.Server{}, errors.New("no sentinel has named the primary yet")
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.options
	return server(&redis.Options{Addr: f.primary, Username: o.Username, Password: o.Password, DB: o.DB, Dialer: o.Dialer,
		TLSConfig: o.TLSConfig, CredentialsProvider: o.CredentialsProvider,
		CredentialsProviderContext:   o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider}), nil
}

func (f *failover) Moved(context.Context, string) (swlimit.Server, error) {
	return swlimit.Server{}, errors.New("a server behind sentinels redirects nowhere")
}

// follow asks one sentinel each second, and whenever it announces a new primary.
func (f *failover) follow(addr string) {
	client := redis.NewSentinelClient(&redis.Options{Addr: addr, Username: f.options.SentinelUsername,
		Password: f.options.SentinelPassword, TLSConfig: f.options.TLSConfig, Dialer: f.options.Dialer, MaxRetries: -1,
		ContextTimeoutEnabled: true})
	defer client.Close()
	announced := client.Subscribe(f.ctx, "+switch-master")
	defer announced.Close()
	switches := announced.Channel()
	ticker := time.NewTicker(askSentinel)
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(f.ctx, askSentinel)
		master, err := client.Master(asking, f.options.MasterName).Result()
		cancel()
		if err == nil {
			epoch, _ := strconv.ParseInt(master["config-epoch"], 10, 64)
			f.found(net.JoinHostPort(master["ip"], master["port"]), epoch)
		}
		select {
		case <-switches:
		case <-ticker.C:
		case <-f.ctx.Done():
			return
		}
	}
}

func (f *failover) found(primary string, epoch int64) {
	f.mu.Lock()
	before, first := f.primary, f.epoch < 0
	if primary == before || epoch < f.epoch {
		f.mu.Unlock()
		return
	}
	f.primary, f.epoch = primary, epoch
	f.mu.Unlock()
	if first {
		close(f.known)
		return
	}
	slog.Warn("swlimit: another server is the primary", "name", f.options.MasterName, "primary", primary, "was", before)
	f.left(before)
}
