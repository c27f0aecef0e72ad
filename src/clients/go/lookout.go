package swlimit

import (
	"context"
	"sync"
)

// A lookout is what [Cluster] and [Sentinel] share: they look for servers from the first request until Close.
type lookout struct {
	begin   sync.Once
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	left    func(addr string)
	known   chan struct{} // closed once there are servers
}

// OnLeave takes the function that closes the connections to a server that is no longer a primary.
func (l *lookout) OnLeave(left func(addr string)) {
	l.left, l.known = left, make(chan struct{})
	l.ctx, l.cancel = context.WithCancel(context.Background())
}

// Close ends the search.
func (l *lookout) Close() error {
	l.cancel()
	l.begin.Do(func() {})
	l.running.Wait()
	return nil
}

// ready tells whether servers are known before ctx ends. The first call runs look, which starts the search.
func (l *lookout) ready(ctx context.Context, look func()) bool {
	l.begin.Do(look)
	select {
	case <-l.known:
		return true
	default:
	}
	select {
	case <-l.known:
		return true
	case <-ctx.Done():
		return false
	}
}
