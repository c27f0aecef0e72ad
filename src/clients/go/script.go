package swlimit

import (
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/swlimit/swlimit/src/server/script"
)

var scriptSHA, takeOverSHA = shaOf(script.Text), shaOf(script.TakeOver)

func shaOf(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// scriptSubintervals is the most that the script takes.
const scriptSubintervals = 4096

// A dialect says how one connection is asked: in the module's commands, or by the script.
type dialect struct {
	byScript  bool
	isOld     bool         // the module lacks commands that newer ones have
	lacks     []string     // of the commands that take ids
	noReadSHA bool         // the server has no EVALSHA_RO
	clock     func() int64 // this machine's, in Unix ms, where the script may not ask the server for the time
}

// scripts tells whether the script decides a command.
func (d dialect) scripts(c *command) bool { return d.byScript && c.name != "" && !c.needsModule }

const (
	mostTexts = 1000 // keys that had the script's text are remembered
	textAgain = time.Minute
)

// scriptLoads is what is known of a server that has lost the script, or never keeps it.
type scriptLoads struct {
	mu      sync.Mutex
	loading chan struct{}   // closed once a text that is under way has been answered
	had     map[string]bool // keys that were asked for with the text
	always  bool            // the server does not keep the script: each request brings it
	tryAt   time.Duration   // when to try without the text again
}

// load waits while another request brings the script to the server, and tells whether this one is to bring it.
func (s *scriptLoads) load(ctx context.Context, c *call, until time.Duration, log *slog.Logger) bool {
	s.mu.Lock()
	if s.had[c.key()] && !s.always {
		s.always, s.tryAt = true, now()+jittered(textAgain)
		log.Warn("the server does not keep the script: each request brings its text", "event", "noscript")
	}
	if s.always {
		s.mu.Unlock()
		return true
	}
	loading := s.loading
	if loading == nil {
		s.loading = make(chan struct{})
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	timer := time.NewTimer(until - now())
	defer timer.Stop()
	select {
	case <-loading:
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// sendsText tells whether a request brings the script's text at once.
func (s *scriptLoads) sendsText() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.always && now() >= s.tryAt {
		s.tryAt = now() + jittered(textAgain)
		return false
	}
	return s.always
}

// heard gets how a request of the script went.
func (s *scriptLoads) heard(c *call, isLost bool) {
	if !c.whole && !c.byScript && !c.takesOver {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.whole:
		if s.had == nil || len(s.had) >= mostTexts {
			s.had = map[string]bool{}
		}
		s.had[c.key()] = true
		if s.loading != nil {
			close(s.loading)
			s.loading = nil
		}
	case !isLost && c.over.Load() && c.err == nil:
		s.always = false
		clear(s.had)
	}
}

// evaluated is how a script begins to be called; whole with its text.
func evaluated(text, sha string, whole, reads bool, keys []string) []string {
	call, body := "EVALSHA", sha
	if whole {
		call, body = "EVAL", text
	}
	if reads {
		call += "_RO"
	}
	return append([]string{call, body, strconv.Itoa(len(keys))}, keys...)
}

// words are a command as it is sent; whole with the script itself.
func (d dialect) words(c *command, whole bool) []string {
	switch {
	case c.takesOver:
		return evaluated(script.TakeOver, takeOverSHA, whole, false, c.keys)
	case !d.scripts(c):
		return c.words()
	}
	sent := evaluated(script.Text, scriptSHA, whole, c.reads && !d.noReadSHA, c.keys)
	at := int64(-1)
	if d.clock != nil && c.name != "INFO" {
		at = d.clock()
	}
	if c.packable && c.packed.subintervals() <= scriptSubintervals {
		return append(sent, c.packed.pack(!c.reads, at))
	}
	tooFine := func(r rate) bool { return r.subintervals() > scriptSubintervals }
	if len(c.together) > 1 && !slices.ContainsFunc(c.together, tooFine) {
		return append(sent, packTogether(c.together, at))
	}
	sent = append(append(sent, c.name), c.arguments[:len(c.arguments)-c.waits]...)
	if at >= 0 {
		sent = append(sent, "AT", number(at))
	}
	return sent
}

func (d *demand) subintervals() int64 { return d.window / d.resolution }

// pack makes one argument of an ALLOW, which counts, or a PEEK: the server reads it faster; at < 0: by the server's
// clock.
func (d *demand) pack(counts bool, at int64) string {
	b := append(make([]byte, 0, 41), flags(counts, d.partial, d.strict))
	return string(appendTime(d.append(b), at))
}

// packTogether makes one argument of a MALLOW of several rates.
func packTogether(rates []rate, at int64) string {
	b := append(make([]byte, 0, 32*len(rates)+9), flags(true, false, rates[0].strict, true))
	for i := range rates {
		b = rates[i].append(b)
	}
	return string(appendTime(b, at))
}

func flags(set ...bool) (flags byte) {
	for bit, isSet := range set {
		if isSet {
			flags |= 1 << bit
		}
	}
	return flags
}

func (d *demand) append(b []byte) []byte {
	for _, n := range []int64{d.limit, d.resolution, d.subintervals(), d.cost} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return b
}

func appendTime(b []byte, at int64) []byte {
	if at < 0 {
		return b
	}
	return binary.LittleEndian.AppendUint64(b, uint64(at))
}

// unpacked is the module's reply where the script has packed it into three doubles.
func unpacked(raw any, c *command) any {
	text, ok := raw.(string)
	if !ok || len(text) != 24 || !c.packable {
		return raw
	}
	double := func(at int) int64 {
		return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(text[at : at+8]))))
	}
	limit := c.packed.limit
	first, second, reset := double(0), double(8), double(16)
	if first > 0 {
		return []any{first, limit, second, int64(0), reset}
	}
	return []any{int64(0), limit, -first, second, reset}
}
