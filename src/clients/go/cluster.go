package swlimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	slots       = 1 << 14
	askCluster  = time.Second            // a server of the cluster has so long to answer which has what
	reloadPause = 100 * time.Millisecond // between two such questions
)

// A Cluster is the [Transport] of a cluster, for one Client. It asks again which server has which slots when
// one redirects, or does not answer. A single server that is not one of a cluster has all.
type Cluster struct {
	// Addrs are the addresses of some of the servers.
	Addrs []string
	// Server says how to connect to each: everything but its Addr, and its DB is 0.
	Server Server

	search discovery
	wake   chan struct{}

	mu     sync.Mutex
	ranges []slotRange // in order
	why    error       // why none is known
}

type slotRange struct {
	first, last int
	addr        string
}

func (c *Cluster) begin(client *Client) error {
	c.wake, c.why = make(chan struct{}, 1), errors.New("no server of the cluster has answered yet")
	return c.search.start(client)
}

func (c *Cluster) end() { c.search.end() }

// Primary is the server that has a key's slot.
func (c *Cluster) Primary(ctx context.Context, key string) (Server, error) {
	known := c.ready(ctx)
	slot := slotOf(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !known {
		return Server{}, c.why
	}
	at, found := slices.BinarySearchFunc(c.ranges, slot, func(r slotRange, slot int) int {
		switch {
		case r.last < slot:
			return -1
		case r.first > slot:
			return 1
		}
		return 0
	})
	if !found {
		c.reload()
		return Server{}, fmt.Errorf("no server has slot %d", slot)
	}
	return c.Server.at(c.ranges[at].addr), nil
}

// ready tells whether the cluster's servers are known before ctx ends.
func (c *Cluster) ready(ctx context.Context) bool {
	return c.search.ready(ctx, func() { c.search.running.Go(c.follow) })
}

// Moved is the server at an address to which another has redirected.
func (c *Cluster) Moved(_ context.Context, addr string) (Server, error) {
	c.reload()
	return c.Server.at(addr), nil
}

// unavailable hears that a server does not answer: another may have its slots, or has them already.
func (c *Cluster) unavailable(addr string) {
	c.reload()
	if !slices.Contains(c.primaries(), addr) {
		c.search.client.leave(addr)
	}
}

func (c *Cluster) reload() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// follow asks which server has which slots, at first and whenever that may have changed.
func (c *Cluster) follow() {
	for first := true; ; {
		if c.load() && first {
			first = false
			close(c.search.known)
		}
		if !sleep(c.search.ctx, reloadPause) {
			return
		}
		if first {
			continue
		}
		select {
		case <-c.wake:
		case <-c.search.ctx.Done():
			return
		}
	}
}

// load asks one server after the other, until one answers.
func (c *Cluster) load() bool {
	before := c.primaries()
	var faults []error
	for _, addr := range append(before, c.Addrs...) {
		ranges, err := c.ask(addr)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", addr, err))
			continue
		}
		c.mu.Lock()
		c.ranges = ranges
		c.mu.Unlock()
		now := c.primaries()
		for _, addr := range before {
			if !slices.Contains(now, addr) {
				c.search.client.leave(addr)
			}
		}
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.why = fmt.Errorf("no server of the cluster has answered yet: %v", errors.Join(faults...))
	return false
}

// primaries are the addresses of the servers that have slots.
func (c *Cluster) primaries() (addrs []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.ranges {
		if !slices.Contains(addrs, r.addr) {
			addrs = append(addrs, r.addr)
		}
	}
	return addrs
}

// ask is what one server says, over a connection of its own.
func (c *Cluster) ask(addr string) ([]slotRange, error) {
	asking, cancel := context.WithTimeout(c.search.ctx, askCluster)
	defer cancel()
	var reply any
	err := c.Server.at(addr).converse(asking, func(conn net.Conn, r *bufio.Reader) error {
		replies, err := exchange(conn, r, []string{"CLUSTER", "SLOTS"})
		if err == nil {
			reply = replies[0]
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	failed, isError := reply.(serverError)
	switch text := string(failed); {
	case !isError:
		return rangesOf(reply, addr)
	case len(c.Addrs) == 1 && (unknownCommand.MatchString(text) || strings.Contains(text, "cluster support disabled")):
		return []slotRange{{0, slots - 1, addr}}, nil
	}
	return nil, failed
}

// rangesOf reads the reply to CLUSTER SLOTS of the server at addr.
func rangesOf(reply any, addr string) ([]slotRange, error) {
	list, _ := reply.([]any)
	var ranges []slotRange
	for _, each := range list {
		fields, _ := each.([]any)
		if len(fields) < 3 {
			return nil, unexpected(reply)
		}
		first, isFirst := fields[0].(int64)
		last, isLast := fields[1].(int64)
		primary, _ := fields[2].([]any)
		if !isFirst || !isLast || len(primary) < 2 {
			return nil, unexpected(reply)
		}
		name, _ := primary[0].(string)
		port, isPort := primary[1].(int64)
		if !isPort {
			return nil, unexpected(reply)
		}
		ranges = append(ranges, slotRange{int(first), int(last), placeOf(name, strconv.FormatInt(port, 10), addr)})
	}
	if len(ranges) == 0 {
		return nil, errors.New("the cluster has no slots yet")
	}
	slices.SortFunc(ranges, func(a, b slotRange) int { return a.first - b.first })
	return ranges, nil
}

// placeOf is the address of the server that another at an address names. It leaves its own host out at times.
func placeOf(host, port, by string) string {
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(by)
	}
	return net.JoinHostPort(host, port)
}

// slotOf is a key's slot: of what stands between its first braces, if something does.
func slotOf(key string) int {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return int(crc) % slots
}

// crc16 is the table of CRC-16/XMODEM.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()

// single is the Transport of one address, whose server may say that it is one of a cluster.
type single struct {
	server  Server
	cluster atomic.Pointer[Cluster] // once its servers are known, and can be reached

	mu    sync.Mutex
	found chan struct{} // closed once that is found out; nil: the server is none of a cluster
	ended bool
	all   *Cluster
}

// Primary is the one server, or that of the cluster which has a key's slot.
func (s *single) Primary(ctx context.Context, key string) (Server, error) {
	if cluster := s.cluster.Load(); cluster != nil {
		return cluster.Primary(ctx, key)
	}
	return s.server, nil
}

// Moved is the server at an address to which another has redirected. It waits until the cluster is known.
func (s *single) Moved(ctx context.Context, addr string) (Server, error) {
	s.mu.Lock()
	found := s.found
	s.mu.Unlock()
	if found == nil {
		return Server{}, ErrCluster
	}
	select {
	case <-found:
	case <-ctx.Done():
	}
	if cluster := s.cluster.Load(); cluster != nil {
		return cluster.Moved(ctx, addr)
	}
	return Server{}, errors.New("no address that the cluster names can be reached")
}

func (s *single) begin(*Client) error { return nil }

func (s *single) unavailable(addr string) {
	if cluster := s.cluster.Load(); cluster != nil {
		cluster.unavailable(addr)
	}
}

func (s *single) end() {
	s.mu.Lock()
	s.ended = true
	all := s.all
	s.mu.Unlock()
	if all != nil {
		all.end()
	}
}

// isOfCluster has the client follow the cluster whose server it has opened, once.
func (s *single) isOfCluster(c *Client, at Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found != nil || s.ended {
		return
	}
	s.found, s.all = make(chan struct{}), &Cluster{Addrs: []string{at.Addr}, Server: s.server}
	_ = s.all.begin(c)
	c.spawn(func() {
		defer close(s.found)
		switch {
		case !s.all.ready(c.ctx):
		case s.all.isReachable(at.Addr):
			s.cluster.Store(s.all)
		default:
			c.log().Warn("no address that the cluster names can be reached: stays with "+at.Addr, "event", "cluster",
				"server", at.Addr, "named", s.all.primaries())
		}
	})
}

// isReachable tells whether a connection to an address that the cluster names can be opened: to one at least.
func (c *Cluster) isReachable(known string) bool {
	all := c.primaries()
	if slices.Contains(all, known) {
		return true
	}
	trying, cancel := context.WithTimeout(c.search.ctx, askCluster)
	defer cancel()
	reached := make(chan bool, len(all))
	for _, addr := range all {
		go func() {
			at := c.Server.at(addr)
			conn, err := at.dial(trying)
			if err == nil {
				conn.Close()
			}
			reached <- err == nil
		}()
	}
	for range all {
		if <-reached {
			return true
		}
	}
	return false
}
