package swlimit

import (
	"context"
	"sync"
)

// A discovery is what [Cluster] and [Sentinel] share: they look for servers from the first request until Close.
type discovery struct {
	client  *Client
	begun   sync.Once
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	known   chan struct{} // closed once there are servers
}

func (d *discovery) start(c *Client) error {
	if d.client != nil {
		return wrong("a transport serves one client, and this one has one already")
	}
	d.client, d.known = c, make(chan struct{})
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return nil
}

// end ends the search.
func (d *discovery) end() {
	d.cancel()
	d.begun.Do(func() {})
	d.running.Wait()
}

// ready tells whether servers are known before ctx ends. The first call runs look, which starts the search.
func (d *discovery) ready(ctx context.Context, look func()) bool {
	d.begun.Do(look)
	select {
	case <-d.known:
		return true
	default:
	}
	select {
	case <-d.known:
		return true
	case <-ctx.Done():
		return false
	}
}
