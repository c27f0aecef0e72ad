package swlimit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"
)

// askSentinel is the time between two questions to a sentinel about the primary.
const askSentinel = time.Second

// A Sentinel is the [Transport] of the primary that sentinels name, for one Conn. All of them announce a new primary,
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

	lookout
	mu      sync.Mutex
	primary string
	epoch   int64
}

// Primary is the server that the sentinels name.
func (s *Sentinel) Primary(ctx context.Context, _ string) (Server, error) {
	known := s.ready(ctx, func() {
		for _, addr := range s.Addrs {
			s.running.Go(func() { s.follow(addr) })
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
	s.running.Go(func() {
		for s.ctx.Err() == nil {
			_ = server.converse(s.ctx, func(conn net.Conn, r *bufio.Reader) error {
				return s.listen(conn, r, switches)
			})
			sleep(s.ctx, askSentinel)
		}
	})
	ticker := time.NewTicker(askSentinel)
	defer ticker.Stop()
	for s.ctx.Err() == nil {
		_ = server.converse(s.ctx, func(conn net.Conn, r *bufio.Reader) error {
			for {
				if err := s.ask(conn, r); err != nil {
					return err
				}
				select {
				case <-switches:
				case <-ticker.C:
				case <-s.ctx.Done():
					return s.ctx.Err()
				}
			}
		})
		sleep(s.ctx, askSentinel)
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
func (s *Sentinel) ask(conn net.Conn, r *bufio.Reader) error {
	_ = conn.SetDeadline(time.Now().Add(askSentinel))
	replies, err := exchange(conn, r, []string{"SENTINEL", "MASTER", s.Name},
		[]string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.Name})
	if err != nil {
		return err
	}
	fields, _ := replies[0].([]any)
	place, _ := replies[1].([]any)
	for i := 0; i+1 < len(fields) && len(place) == 2; i += 2 {
		if fields[i] == "config-epoch" {
			epoch, err := strconv.ParseInt(fmt.Sprint(fields[i+1]), 10, 64)
			if err != nil {
				return err
			}
			s.found(net.JoinHostPort(fmt.Sprint(place[0]), fmt.Sprint(place[1])), epoch)
		}
	}
	return nil
}

func (s *Sentinel) found(primary string, epoch int64) {
	s.mu.Lock()
	before := s.primary
	if epoch >= s.epoch {
		s.primary, s.epoch = primary, epoch
	}
	changed := s.primary != before
	s.mu.Unlock()
	if !changed {
		return
	}
	if before == "" {
		close(s.known)
		return
	}
	slog.Warn("swlimit: another server is the primary", "name", s.Name, "primary", primary, "was", before)
	s.left(before)
}
