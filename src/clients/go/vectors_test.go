package swlimit

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// vectors are what several languages share.
func vectors(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("../../../tests/conformance/vectors/" + name + ".json")
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDecisions(t *testing.T) {
	var cases []struct {
		Stored *struct {
			Window, Resolution int64
			Counts             [][2]int64
		}
		BlockedUntil int64 `json:"blocked_until"`
		Since, Now   int64
		Request      fields
		Decision     [5]int64
	}
	vectors(t, "decisions", &cases)
	for i, c := range cases {
		e := entry{blockedUntil: c.BlockedUntil, since: c.Since}
		if c.Stored != nil {
			e.counts = counts{window: c.Stored.Window, resolution: c.Stored.Resolution}
			for _, at := range c.Stored.Counts {
				e.counts.list = append(e.counts.list, count{at[0] / c.Stored.Resolution, at[1]})
			}
		}
		d := c.Request.demand()
		got, err := e.peek(d, c.Now)
		if err != nil || [5]int64{got.granted, got.limit, got.remaining, got.retryAfter, got.resetAfter} != c.Decision {
			t.Errorf("case %d: %+v, %v instead of %v", i, got, err, c.Decision)
		}
		if got.granted > 0 {
			got, err := e.allow(d, c.Now, 0)
			if err != nil || got.granted != c.Decision[0] || got.remaining != c.Decision[2]-c.Decision[0] {
				t.Errorf("case %d: allow says %+v, %v", i, got, err)
			}
		}
	}
	if len(cases) < 100 {
		t.Errorf("only %d cases", len(cases))
	}
}

// The windows of this process reply what the module does.
func TestWindowReplies(t *testing.T) {
	var sequences []struct {
		Name  string
		Steps []struct {
			Command []string
			Reply   json.RawMessage
		}
	}
	vectors(t, "replies", &sequences)
	steps := 0
	for _, s := range sequences {
		keys, last := map[string]*entry{}, map[string]int64{}
		for i, step := range s.Steps {
			reply, err := replyFrom(t, step.Reply)
			if err != nil || step.Command[0] == "SET" {
				continue // what clients refuse themselves
			}
			key, at := step.Command[1], integerIn(step.Command[slices.Index(step.Command, "AT")+1])
			if last[key] = max(at, last[key]); at < last[key] {
				last[key] = math.MaxInt64 // a process's clock does not go back
				continue
			}
			steps++
			if got := windowReply(keys, step.Command); !reflect.DeepEqual(got, reply) {
				t.Fatalf("%s, %d: %q: %v instead of %v", s.Name, i, step.Command, got, reply)
			}
		}
	}
	if steps < 350 {
		t.Errorf("only %d steps", steps)
	}
}

// windowReply is what the windows of some keys reply to a command with AT.
func windowReply(keys map[string]*entry, words []string) any {
	option := func(name string, usual int64) int64 {
		if i := slices.Index(words, name); i > 0 {
			return integerIn(words[i+1])
		}
		return usual
	}
	listed := func(r reply) []any {
		return []any{r.granted, r.limit, r.remaining, r.retryAfter, r.resetAfter}
	}
	at, block := option("AT", 0), option("BLOCK", 0)
	of := func(key string) *entry {
		if keys[key] == nil {
			keys[key] = new(entry)
		}
		return keys[key]
	}
	rising := func() warmUp { return warmUp{option("WARMUP", 0), option("COLD", usualCold)} }
	if words[0] == "SWLIMIT.MALLOW" {
		n := int(integerIn(words[1]))
		names, rest := words[2:2+n], words[2+n:]
		demands, isStrict := make([]demand, n), slices.Contains(words, "STRICT")
		for i := range demands {
			demands[i] = demand{quota{integerIn(rest[0]), integerIn(rest[1]), integerIn(rest[2]), isStrict, warmUp{cold: usualCold}},
				integerIn(rest[3]), false}
			if rest = rest[4:]; len(rest) > 1 && rest[0] == "WARMUP" {
				demands[i].warmUp.duration, rest = integerIn(rest[1]), rest[2:]
			}
			if len(rest) > 1 && rest[0] == "COLD" {
				demands[i].warmUp.cold, rest = integerIn(rest[1]), rest[2:]
			}
		}
		all, granted := []any{int64(1)}, true
		for i := range demands {
			r := must(of(names[i]).peek(&demands[i], at))
			granted = granted && r.granted > 0
			all = append(all, listed(r))
		}
		if !granted {
			all[0] = int64(0)
			return all
		}
		for i := range demands {
			all[1+i] = listed(must(of(names[i]).allow(&demands[i], at, 0)))
		}
		return all
	}
	e := of(words[1])
	switch words[0] {
	case "SWLIMIT.REFUND":
		age := option("AGE", -1)
		if since := option("SINCE", -1); since >= 0 {
			age = max(0, at-since)
		}
		return e.refund(integerIn(words[2]), at, age)
	case "SWLIMIT.BLOCK":
		return e.block(integerIn(words[2]), at, slices.Contains(words, "NX"))
	case "SWLIMIT.UNBLOCK":
		if e.unblock(at) {
			return int64(1)
		}
		return int64(0)
	}
	d := demand{quota{integerIn(words[2]), integerIn(words[3]), integerIn(words[4]), slices.Contains(words, "STRICT"), rising()},
		option("COST", 1), slices.Contains(words, "PARTIAL")}
	switch words[0] {
	case "SWLIMIT.ALLOW":
		return listed(must(e.allow(&d, at, block)))
	case "SWLIMIT.PEEK":
		return listed(must(e.peek(&d, at)))
	}
	return listed(must(e.record(&d, at, option("AGE", 0), block)))
}

func integerIn(word string) int64 {
	return must(strconv.ParseInt(strings.TrimSuffix(word, "ms"), 10, 64))
}

func TestDefaults(t *testing.T) {
	var shared struct {
		Options struct {
			Mode, OnFailure string  `json:"-"`
			ModeName        string  `json:"mode"`
			FailureName     string  `json:"on_failure"`
			LocalShare      float64 `json:"local_share"`
			Timeout         int64
			MaxKeys         int64 `json:"max_keys"`
			MaxWaiting      int   `json:"max_waiting"`
			MaxUntrackedAge int64 `json:"max_untracked_age"`
			Prefix          string
		}
		Breaker struct {
			Failures     int
			SilentTimes  int   `json:"silent_timeouts"`
			FirstProbe   int64 `json:"first_probe"`
			LastProbe    int64 `json:"last_probe"`
			Jitter       float64
			ProbeTimeout int64 `json:"probe_timeout"`
		}
		Numbers     map[string]int64
		Resolutions []struct{ Window, Resolution int64 }
		Shares      []struct {
			Limit, Units int64
			Share        float64
		}
		Denials []struct {
			RetryAfter int64 `json:"retry_after"`
			DeniedFor  int64 `json:"denied_for_us"`
		}
		Looks []struct {
			RetryAfter time.Duration `json:"retry_after"`
			Denials    []struct {
				At   time.Duration
				Pays *bool
			}
		}
		Reservations []struct{ Key, Name string }
		Refusals     []struct{ Reply, Error string }
		Deadlines    []struct {
			Left int64 `json:"left_us"`
			Wait int64 `json:"wait_us"`
		}
	}
	vectors(t, "defaults", &shared)
	client := must(NewClient(Server{Addr: "127.0.0.1:1"}))
	defer client.Close()
	s := defaults()
	o := shared.Options
	if string(s.mode) != o.ModeName || string(s.onFailure) != o.FailureName || s.localShare != o.LocalShare ||
		s.timeout.Milliseconds() != o.Timeout || s.maxKeys != o.MaxKeys || client.settings.maxWaiting != o.MaxWaiting ||
		s.maxUntrackedAge.Milliseconds() != o.MaxUntrackedAge || s.prefix != o.Prefix {
		t.Errorf("%+v instead of %+v", s, o)
	}
	b := shared.Breaker
	if b.Failures != mostFailures || b.SilentTimes != silentTimes || b.FirstProbe != firstProbe.Milliseconds() ||
		b.LastProbe != lastProbe.Milliseconds() || b.Jitter != probeJitter || b.ProbeTimeout != probeTimeout.Milliseconds() {
		t.Errorf("the breaker is not %+v", b)
	}
	for name, number := range map[string]int64{
		"poll": poll.Milliseconds(), "silence": silence.Milliseconds(), "connect": slowConnect.Milliseconds(),
		"late": drain.Milliseconds(), "max_unanswered": mostUnanswered, "script_tries": mostTries,
		"script_subintervals": scriptSubintervals, "look_from": shortDenial.Milliseconds(),
		"look_round_trips": shortInTrips, "look_denials": lookDenials,
		"closing": closing.Milliseconds(), "closing_round_trips": closingTrips,
		"min_hold_ttl": leastTTL, "max_hold_wait": longestWait.Milliseconds(), "ids_per_renewal": mostIDs,
		"min_hold_poll": leastHoldPoll.Milliseconds(), "max_hold_poll": mostHoldPoll.Milliseconds(),
		"renewals_per_ttl": renewPart, "retries_per_ttl": renewAgain, "max_limit": maxExact, "max_window": maxWindow,
		"max_subintervals": maxSubintervals, "admission_poll": poll.Milliseconds(), "admission_jitter": admissionJitter,
		"reservation_ttl": reservedFor, "hold_retry_after": longestHoldRetry.Milliseconds(),
	} {
		if wanted, ok := shared.Numbers[name]; !ok || number != wanted {
			t.Errorf("%s is %d instead of %d", name, number, wanted)
		}
	}
	for _, r := range shared.Resolutions {
		if got := usualResolution(r.Window); got != r.Resolution {
			t.Errorf("window %d: resolution %d instead of %d", r.Window, got, r.Resolution)
		}
	}
	for _, r := range shared.Shares {
		if got := shareOf(r.Limit, r.Share); got != r.Units {
			t.Errorf("%v of %d: %d instead of %d", r.Share, r.Limit, got, r.Units)
		}
	}
	for _, r := range shared.Denials {
		if got := deniedFor(r.RetryAfter).Microseconds(); got != r.DeniedFor {
			t.Errorf("retry after %d: denied for %d instead of %d", r.RetryAfter, got, r.DeniedFor)
		}
	}
	for _, r := range shared.Looks {
		var known denialCache
		known.init()
		d := demand{quota: quota{limit: 1}, cost: 1}
		known.remember("k", &d, known.ask("k", true), reply{retryAfter: 3_600_000}, 0, Never)
		for _, each := range r.Denials {
			if each.Pays == nil {
				if _, ok := known.find("k", &d, false); !ok {
					t.Error("it is not known")
				}
			} else if got := known.paysToLook("k", each.At*time.Millisecond, r.RetryAfter*time.Millisecond); got != *each.Pays {
				t.Errorf("%+v: at %d it is %v that a look pays", r, each.At, got)
			}
		}
	}
	for _, r := range shared.Reservations {
		if got := beside(r.Key, "reserved"); got != r.Name {
			t.Errorf("%s: reserved by %s instead of %s", r.Key, got, r.Name)
		}
	}
	for _, r := range shared.Refusals {
		if got := understood(serverError(r.Reply)); got.Error() != r.Error {
			t.Error(got)
		}
	}
	for _, r := range shared.Deadlines {
		if got := patience(time.Duration(r.Left) * time.Microsecond).Microseconds(); got != r.Wait {
			t.Errorf("%d µs left: %d instead of %d", r.Left, got, r.Wait)
		}
	}
}

func TestSeveralLimitsEachByItsOwnPolicy(t *testing.T) {
	var known struct {
		Failures []struct {
			Parts []struct {
				OnFailure   FailurePolicy `json:"on_failure"`
				Limit, Cost int64
			}
			Outcome string
			Left    []*int64
		}
	}
	vectors(t, "defaults", &known)
	client := connect(t, Server{Addr: "127.0.0.1:1"})
	together := map[string]func([]Request) (bool, error){
		"AllowAll": func(requests []Request) (bool, error) {
			decisions, err := AllowAll(background, requests...)
			return decisions.Allowed, err
		},
		"Admit": func(requests []Request) (bool, error) {
			var parts []Part
			for _, r := range requests {
				parts = append(parts, r)
			}
			admission, err := Admit(background, parts)
			return err == nil && admission.Allowed, err
		},
	}
	for name, decide := range together {
		for _, c := range known.Failures {
			var requests []Request
			for _, part := range c.Parts {
				l := limiter(t, client, part.Limit, OnFailure(part.OnFailure))
				requests = append(requests, l.Request(key(), part.Cost))
			}
			allowed, err := decide(requests)
			if (err != nil) != (c.Outcome == "error") || allowed != (c.Outcome == "granted") ||
				err != nil && !errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: %+v: %v, %v", name, c, allowed, err)
			}
			for i, r := range requests {
				if c.Left[i] == nil {
					continue
				}
				if left, _ := must(r.limiter.Peek(background, r.key)).Remaining(); left != *c.Left[i] {
					t.Errorf("%s: %+v: %d of %d are left", name, c, left, i)
				}
			}
		}
		if len(known.Failures) < 25 {
			t.Errorf("only %d cases", len(known.Failures))
		}
	}
}

// Why a server counts as unavailable is said in the words of all languages, and never read from prose.
func TestReasons(t *testing.T) {
	var known struct {
		Words   []string
		Ends    []struct{ Name, Reason string }
		Replies []struct {
			Name, Reply string
			Reason      *string
		}
	}
	vectors(t, "reasons", &known)
	for _, r := range known.Replies {
		want := ""
		if r.Reason != nil {
			want = *r.Reason
		}
		if got := reasonOfReply(r.Reply); got != want {
			t.Errorf("%s: %q instead of %q", r.Name, got, want)
		}
	}
	ends := map[string]error{
		"connection refused":    &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"socket file missing":   &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENOENT)},
		"host unreachable":      &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)},
		"name not resolved":     &net.DNSError{Err: "no such host", Name: "redis-tls-1", IsNotFound: true},
		"certificate refused":   &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"TLS handshake failed":  tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		"no connection in time": context.DeadlineExceeded, "no reply in time": os.ErrDeadlineExceeded,
		"connection silent": os.ErrDeadlineExceeded, "connection closed": io.EOF,
		"connection reset": &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
		"broken pipe":      &net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)},
		"reply late":       &unavailable{reason: reasonSlow}, "reply not understood": unexpected("x"),
	}
	for _, r := range known.Ends {
		if err, ok := ends[r.Name]; !ok || reasonOfEnd(err) != r.Reason || !slices.Contains(known.Words, r.Reason) {
			t.Errorf("%s: %q instead of %q", r.Name, reasonOfEnd(err), r.Reason)
		}
	}
}
