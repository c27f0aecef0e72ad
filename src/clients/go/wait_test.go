package swlimit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A denying server denies each request, and lets nobody wait.
type denying struct {
	mu   sync.Mutex
	back []string // the commands that give back
}

func (s *denying) reply(_ string, words []any) string {
	var name string
	for _, word := range words {
		text := strings.TrimPrefix(word.(string), prefix)
		if name == "" && slices.Contains([]string{"ADMIT", "HOLD", "ACQUIRE", "ALLOW", "RELEASE", "REFUND", "SETTLE"}, text) {
			name = text
		}
	}
	packed := words[0] == "EVALSHA" && name == "" // an ALLOW in one argument
	switch {
	case words[0] == "TIME":
		return "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"
	case name == "" && !packed:
		return noReply
	case len(words) == 1: // how a connection begins
		return "-ERR wrong number of arguments\r\n"
	case slices.Contains([]string{"RELEASE", "REFUND", "SETTLE"}, name):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.back = append(s.back, name)
		return "*1\r\n:0\r\n"
	case name == "HOLD" && slices.Contains(words, any("WAIT")), name == "ACQUIRE" && words[5] != "0ms":
		return "-UNBLOCKED for a test\r\n"
	}
	const rate, held = "*5\r\n:0\r\n:7\r\n:0\r\n:50\r\n:1000\r\n", "*6\r\n:0\r\n:7\r\n:0\r\n:50\r\n:1\r\n:1\r\n"
	switch {
	case name == "HOLD":
		return held
	case name == "ADMIT" && slices.Contains(words, any("HOLD")):
		return "*4\r\n:0\r\n" + held + rate + held
	case name == "ADMIT":
		return "*2\r\n:0\r\n" + rate
	}
	return rate
}

// gone is a context that is cancelled once isSo, and slow to say so.
type gone struct {
	context.Context
	isSo *atomic.Bool
}

func (g gone) Err() error {
	if g.isSo.Load() {
		return context.Canceled
	}
	return nil
}

func (g gone) Done() <-chan struct{} {
	time.Sleep(20 * time.Millisecond)
	done := make(chan struct{})
	if g.isSo.Load() {
		close(done)
	}
	return done
}

// Nobody else waits on a connection whose caller has gone, also where the reply is there when it goes: what was granted
// is given back there, and then it closes.
func TestNobodyGetsAConnectionThatEnds(t *testing.T) {
	t.Parallel()
	server, isSo := &denying{}, new(atomic.Bool)
	client := connect(t, Server{Addr: fake(t, func(addr string, words []any) string {
		if words[0] == prefix+"ACQUIRE" && len(words) > 5 && words[5] != "0ms" {
			isSo.Store(true)
			return "*5\r\n:1\r\n:7\r\n:0\r\n:0\r\n:1000\r\n"
		}
		return server.reply(addr, words)
	})})
	l := must(New(client, Quota{Limit: 7, Window: time.Minute}, Direct, OnFailure(FailError), Timeout(20*time.Second)))
	cancelled := 0
	for range 100 {
		isSo.Store(false)
		err := l.Wait(gone{background, isSo}, key())
		if err == nil {
			continue
		}
		client.waits.mu.Lock()
		kept := len(client.waits.idle)
		client.waits.mu.Unlock()
		if !errors.Is(err, context.Canceled) || kept > 0 {
			t.Fatalf("%v, and %d kept", err, kept)
		}
		if cancelled++; cancelled == 10 {
			return
		}
	}
	t.Errorf("cancelled %d times", cancelled)
}
