package swlimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	askSentinel = time.Second     // between two questions to a sentinel about the primary
	answerAge   = 3 * askSentinel // what a sentinel said longer ago does not count
)

// A Sentinel is the [Transport] of the primary that sentinels name, for one Client. All of them announce a new primary,
// and each is asked once a second. Of several answers the one with the largest config-epoch counts, so that a stale
// sentinel leads nobody back. On a change the connections to the old primary are closed at once.
//
// A primary that is cut off together with its clients goes on granting: only min-replicas-to-write of the server
// helps.
type Sentinel struct {
	// Name is what the sentinels call the primary.
	Name string
	// Addrs are the addresses of the sentinels.
	Addrs []string
	// Sentinels says how to connect to each of them, Server how to connect to the primary: everything but their Addr.
	Sentinels, Server Server

	search  discovery
	mu      sync.Mutex
	primary string
	epoch   int64
	named   map[string]naming // by sentinel
	doubts  bool              // whether the primary is being asked for its role
}

// A naming is what one sentinel says.
type naming struct {
	primary   string
	epoch     int64
	sentinels int // it knows, itself included, that it does not call down
	at        time.Duration
}

func (s *Sentinel) begin(c *Client) error {
	s.named = map[string]naming{}
	return s.search.start(c)
}

func (s *Sentinel) unavailable(string) {}
func (s *Sentinel) end()               { s.search.end() }

// Primary is the server that the sentinels name.
func (s *Sentinel) Primary(ctx context.Context, _ string) (Server, error) {
	known := s.search.ready(ctx, func() {
		for _, addr := range s.Addrs {
			s.search.running.Go(func() { s.follow(addr) })
		}
	})
	if !known {
		return Server{}, errors.New("no sentinel has named the primary yet")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Server.at(s.primary), nil
}

// Moved says that a server behind sentinels redirects nowhere.
func (s *Sentinel) Moved(context.Context, string) (Server, error) {
	return Server{}, errors.New("a server behind sentinels redirects nowhere")
}

// follow asks one sentinel once a second, and when it announces a new primary.
func (s *Sentinel) follow(addr string) {
	server := s.Sentinels.at(addr)
	switches := make(chan struct{}, 1)
	s.search.running.Go(func() {
		for s.search.ctx.Err() == nil {
			_ = server.converse(s.search.ctx, func(conn net.Conn, r *bufio.Reader) error {
				return s.listen(conn, r, switches)
			})
			sleep(s.search.ctx, askSentinel)
		}
	})
	ticker := time.NewTicker(askSentinel)
	defer ticker.Stop()
	for s.search.ctx.Err() == nil {
		_ = server.converse(s.search.ctx, func(conn net.Conn, r *bufio.Reader) error {
			for {
				if err := s.ask(addr, conn, r); err != nil {
					return err
				}
				select {
				case <-switches:
				case <-ticker.C:
				case <-s.search.ctx.Done():
					return s.search.ctx.Err()
				}
			}
		})
		sleep(s.search.ctx, askSentinel)
	}
}

// listen passes each announcement of a new primary on, until the connection ends.
func (s *Sentinel) listen(conn net.Conn, r *bufio.Reader, switches chan<- struct{}) error {
	if _, err := exchange(conn, r, []string{"SUBSCRIBE", "+switch-master"}); err != nil {
		return err
	}
	for {
		if _, err := readReply(r, 0); err != nil {
			return err
		}
		select {
		case switches <- struct{}{}:
		default:
		}
	}
}

// ask asks for the epoch first: in a failover MASTER says the new one already, and still the old address.
func (s *Sentinel) ask(addr string, conn net.Conn, r *bufio.Reader) error {
	_ = conn.SetDeadline(time.Now().Add(askSentinel))
	replies, err := exchange(conn, r, []string{"SENTINEL", "MASTER", s.Name},
		[]string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name}, []string{"SENTINEL", "SENTINELS", s.Name})
	if err != nil {
		return err
	}
	place, _ := replies[1].([]any)
	epoch, err := strconv.ParseInt(fmt.Sprint(helloOf(replies[0], "config-epoch")), 10, 64)
	if err != nil || len(place) != 2 {
		return err
	}
	others, _ := strconv.Atoi(fmt.Sprint(helloOf(replies[0], "num-other-sentinels")))
	all, _ := replies[2].([]any)
	for _, each := range all {
		if flags, _ := helloOf(each, "flags").(string); strings.Contains(flags, "s_down") {
			others--
		}
	}
	s.found(addr, naming{net.JoinHostPort(fmt.Sprint(place[0]), fmt.Sprint(place[1])), epoch, 1 + others, now()})
	return nil
}

// found hears what a sentinel says. A larger epoch is followed, an equal one is no news, and a smaller one is where all
// sentinels have begun again.
func (s *Sentinel) found(sentinel string, says naming) {
	s.mu.Lock()
	before := s.primary
	s.named[sentinel] = says
	switch {
	case before == "" || says.epoch > s.epoch:
		s.primary, s.epoch = says.primary, says.epoch
	case says.epoch < s.epoch && says.primary != before && !s.doubts && s.agree(says.primary):
		s.doubts = true
		s.search.running.Go(func() { s.beginAgain(before, says) })
	}
	changed := s.primary != before
	s.mu.Unlock()
	s.changed(before, says.primary, changed)
}

func (s *Sentinel) changed(before, primary string, isChange bool) {
	switch {
	case !isChange:
	case before == "":
		close(s.search.known)
	default:
		s.search.client.log().Warn("another server is the primary", "event", "primary", "name", s.Name, "primary",
			primary, "was", before)
		s.search.client.leave(before)
	}
}

// agree tells whether a majority of all sentinels name one address. s.mu is held.
func (s *Sentinel) agree(primary string) bool {
	all, agree := len(s.Addrs), 0
	for _, each := range s.named {
		if now()-each.at > answerAge {
			continue
		}
		all = max(all, each.sentinels)
		if each.primary == primary {
			agree++
		}
	}
	return agree > all/2
}

// beginAgain follows a primary of a smaller epoch where the one that is known is none, or cannot be reached.
func (s *Sentinel) beginAgain(before string, says naming) {
	follows := !s.isPrimary(before) && s.isPrimary(says.primary)
	s.mu.Lock()
	s.doubts = false
	follows = follows && s.primary == before && s.agree(says.primary)
	if follows {
		s.primary, s.epoch = says.primary, says.epoch
	}
	s.mu.Unlock()
	s.changed(before, says.primary, follows)
}

// isPrimary asks a server for its role.
func (s *Sentinel) isPrimary(addr string) bool {
	asking, cancel := context.WithTimeout(s.search.ctx, askSentinel)
	defer cancel()
	var role []any
	err := s.Server.at(addr).converse(asking, func(conn net.Conn, r *bufio.Reader) error {
		replies, err := exchange(conn, r, []string{"ROLE"})
		if err == nil {
			role, _ = replies[0].([]any)
		}
		return err
	})
	return err == nil && len(role) > 0 && role[0] == "master"
}
