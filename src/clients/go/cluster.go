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
	"time"
)

const (
	slots       = 1 << 14
	askCluster  = time.Second            // a server of the cluster has so long to answer which has what
	reloadPause = 100 * time.Millisecond // between two such questions
)

// A Cluster is the [Transport] of a cluster, for one Conn. It asks again which server has which slots when
// one redirects, or does not answer. A single server that is not one of a cluster has all.
type Cluster struct {
	// Addrs are the addresses of some of the servers.
	Addrs []string
	// Server says how to connect to each: everything but its Addr, and its DB is 0.
	Server Server

	lookout
	wake chan struct{}

	mu     sync.Mutex
	ranges []slotRange // in order
	why    error       // why none is known
}

type slotRange struct {
	first, last int
	addr        string
}

// OnLeave takes the function that closes the connections to a server that has no slots any longer.
func (c *Cluster) OnLeave(left func(addr string)) {
	c.wake, c.why = make(chan struct{}, 1), errors.New("no server of the cluster has answered yet")
	c.lookout.OnLeave(left)
}

// Primary is the server that has a key's slot.
func (c *Cluster) Primary(ctx context.Context, key string) (Server, error) {
	known := c.ready(ctx, func() { c.running.Go(c.follow) })
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

// Moved is the server at an address to which another has redirected.
func (c *Cluster) Moved(_ context.Context, addr string) (Server, error) {
	c.reload()
	return c.Server.at(addr), nil
}

// Away hears that a server does not answer: another may have its slots, or has them already.
func (c *Cluster) Away(addr string) {
	c.reload()
	if !slices.Contains(c.primaries(), addr) {
		c.left(addr)
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
			close(c.known)
		}
		if !sleep(c.ctx, reloadPause) {
			return
		}
		if first {
			continue
		}
		select {
		case <-c.wake:
		case <-c.ctx.Done():
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
				c.left(addr)
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
	asking, cancel := context.WithTimeout(c.ctx, askCluster)
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
