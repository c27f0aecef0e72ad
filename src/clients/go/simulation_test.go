package swlimit

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A simulated server decides as the module does, by the clock of a bubble of testing/synctest, over a network that
// delays, cuts and refuses.
type simulated struct {
	mu          sync.Mutex
	keys        map[string]*entry
	commands    []string // but those by which connections begin
	unheard     int64    // units that were recorded by commands whose reply never came
	connections map[*line]bool
	isDown      bool
	refusal     string            // of all that writes or decides
	refused     map[string]string // of a key
	// there and back say how long the next command and its reply travel; nil: no time.
	there, back func() time.Duration
}

// A line is a connection as the server has it.
type line struct {
	net.Conn
	arrived chan arrival
	replies chan arrival
	gone    chan struct{}
}

// An arrival is a command or a reply, and when it is there.
type arrival struct {
	at    time.Duration
	words []string
	reply string
	units int64 // that were recorded
}

func (s *simulated) client(t *testing.T, options ...ClientOption) *Client {
	t.Helper()
	dial := func(context.Context, string, string) (net.Conn, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.isDown {
			return nil, syscall.ECONNREFUSED
		}
		near, far := net.Pipe()
		l := &line{far, make(chan arrival, 1<<12), make(chan arrival, 1<<12), make(chan struct{})}
		s.connections[l] = true
		go s.listen(l)
		go s.work(l)
		go s.answer(l)
		return near, nil
	}
	options = append([]ClientOption{Logger(slog.New(slog.DiscardHandler))}, options...)
	return must(NewClient(Server{Addr: "simulated:6379", Dial: dial}, options...))
}

func newSimulated() *simulated {
	return &simulated{keys: map[string]*entry{}, connections: map[*line]bool{}, refused: map[string]string{}}
}

// cut ends all connections: what has not arrived is not executed, and what was not heard stays unheard.
func (s *simulated) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.connections {
		l.Close()
		close(l.gone)
		delete(s.connections, l)
	}
}

func (s *simulated) down(isDown bool) {
	s.mu.Lock()
	s.isDown = isDown
	s.mu.Unlock()
	if isDown {
		s.cut()
	}
}

func (s *simulated) refuse(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal = text
}

func (s *simulated) delay(there, back func() time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there, s.back = there, back
}

func travels(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// due is when something that is sent now is there: nothing overtakes what was sent before.
func (s *simulated) due(travel func() time.Duration, before *time.Duration) time.Duration {
	at := now()
	if travel != nil {
		s.mu.Lock()
		at += travel()
		s.mu.Unlock()
	}
	*before = max(*before, at)
	return *before
}

func (s *simulated) listen(l *line) {
	defer close(l.arrived)
	before := time.Duration(0)
	for r := bufio.NewReader(l); ; {
		raw, err := readReply(r, 0)
		if err != nil {
			return
		}
		var words []string
		for _, word := range raw.([]any) {
			words = append(words, word.(string))
		}
		s.mu.Lock()
		travel := s.there
		s.mu.Unlock()
		l.arrived <- arrival{at: s.due(travel, &before), words: words}
	}
}

func (s *simulated) work(l *line) {
	defer close(l.replies)
	before := time.Duration(0)
	for a := range l.arrived {
		select {
		case <-time.After(a.at - now()):
		case <-l.gone:
			return
		}
		s.mu.Lock()
		reply, units := s.execute(a.words)
		travel := s.back
		s.mu.Unlock()
		l.replies <- arrival{at: s.due(travel, &before), reply: reply, units: units}
	}
}

func (s *simulated) answer(l *line) {
	for a := range l.replies {
		time.Sleep(a.at - now())
		if _, err := l.Write([]byte(a.reply)); err != nil {
			s.mu.Lock()
			s.unheard += a.units
			s.mu.Unlock()
		}
	}
	l.Close()
}

// execute is the reply to a command, and the units that it has recorded. s.mu is held.
func (s *simulated) execute(words []string) (said string, units int64) {
	name, isOurs := strings.CutPrefix(words[0], prefix)
	switch {
	case words[0] == "INFO":
		return "$0\r\n\r\n", 0
	case words[0] == "PING":
		return "+PONG\r\n", 0
	case !isOurs:
		return noReply, 0
	case len(words) == 1:
		return "-ERR wrong number of arguments\r\n", 0
	case s.refusal != "":
		return "-" + s.refusal + "\r\n", 0
	}
	if words[2] != "0" { // which a probe asks for
		s.commands = append(s.commands, strings.Join(append([]string{name}, words[1:]...), " "))
	}
	key := words[1]
	if text := s.refused[key]; text != "" {
		return "-" + text + "\r\n", 0
	}
	e := s.keys[key]
	if e == nil {
		e = new(entry)
		s.keys[key] = e
	}
	number := func(text string) int64 { return must(strconv.ParseInt(strings.TrimSuffix(text, "ms"), 10, 64)) }
	option := func(name string, usual int64) int64 {
		if at := slices.Index(words, name); at > 0 {
			return number(words[at+1])
		}
		return usual
	}
	if name == "REFUND" {
		return fmt.Sprintf(":%d\r\n", e.refund(number(words[2]), clock(), option("AGE", -1))), 0
	}
	d := demand{quota{number(words[2]), number(words[3]), number(words[4]), slices.Contains(words, "STRICT"),
		warmUp{option("WARMUP", 0), option("COLD", usualCold)}},
		option("COST", 1), slices.Contains(words, "PARTIAL")}
	var r reply
	switch name {
	case "ALLOW":
		r = must(e.allow(&d, clock(), 0))
	case "PEEK":
		r = must(e.peek(&d, clock()))
	case "RECORD":
		r, units = must(e.record(&d, clock(), option("AGE", 0), 0)), d.cost
	default:
		return noReply, 0
	}
	return fmt.Sprintf("*5\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n", r.granted, r.limit, r.remaining, r.retryAfter,
		r.resetAfter), units
}

// counted is how many units of a key count within a long window.
func (s *simulated) counted(key string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := int64(0)
	if e := s.keys[key]; e != nil {
		for _, c := range e.counts.list {
			total += c.units
		}
	}
	return total
}

func (s *simulated) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.commands)
}

// between is a random time of at most so long.
func between(seed uint64, most time.Duration) func() time.Duration {
	random := rand.New(rand.NewPCG(seed, uint64(most)))
	return func() time.Duration { return time.Duration(random.Int64N(int64(most) + 1)) }
}
