package swlimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

var (
	// ErrArgument is matched by errors about wrong arguments.
	ErrArgument = errors.New("swlimit: wrong argument")
	// ErrDenied is matched by the errors of Wait and of [Holds.Acquire] when nothing was granted: see [DeniedError].
	ErrDenied = errors.New("swlimit: denied")
	// ErrUnavailable is matched by errors that say that the server could not be asked, or did not answer in time.
	ErrUnavailable = errors.New("swlimit: the server is unavailable")
	// ErrModuleMissing is matched where the server has no module swlimit, and the script cannot do without it; and where
	// the module is too old for a command.
	ErrModuleMissing = errors.New("swlimit: the server does not have the module: load it with " +
		"`MODULE LOAD /path/to/swlimit.so`")
	// ErrCluster is matched where a server is one of a cluster and redirects, and the client does not follow.
	ErrCluster = errors.New("swlimit: the server is one of a cluster: use a swlimit.Cluster, or " +
		"FollowCluster(ClusterAuto)")
	// ErrClosed is matched by errors of a Client that was closed.
	ErrClosed = errors.New("swlimit: closed")
	// ErrLost is the cause that the context of a lost hold is cancelled with.
	ErrLost = errors.New("swlimit: the hold is lost")

	errNotMade       = fmt.Errorf("%w: a limiter must be made by New, NewHolds, NewBudget or NewAdaptive", ErrArgument)
	errClientNotMade = fmt.Errorf("%w: a client must be made by NewClient", ErrArgument)

	errOverflow  = RefusedError("ERR count would overflow")
	errWrongType = RefusedError("WRONGTYPE Operation against a key holding the wrong kind of value")
)

// A DeniedError says that nothing was granted to a caller who asked for no decision.
type DeniedError struct {
	Decision Decision
	// Part is the part of an admission that denied: its name, or else that of its limiter.
	Part string

	again time.Duration // 0: the decision says it
}

// RetryAfter is when to try again: Never where that does not help, or Unknown. Of an admission it counts all parts.
// Holds may be released at any moment, so for those of an admission it is a second at most.
func (e *DeniedError) RetryAfter() time.Duration {
	if e == nil {
		return 0
	}
	if e.again != 0 {
		return e.again
	}
	return e.Decision.RetryAfter
}

func (e *DeniedError) Error() string {
	if e == nil {
		return ErrDenied.Error()
	}
	switch d := e.Decision; d.RetryAfter {
	case Never:
		return fmt.Sprintf("%v: the cost is above the limit of %d", ErrDenied, d.Limit)
	case Unknown:
		return ErrDenied.Error()
	default:
		return fmt.Sprintf("%v: retry after %v", ErrDenied, d.RetryAfter)
	}
}

// Is makes errors.Is(err, ErrDenied) true.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// A RefusedError is an error reply of the server's to what the caller asked for: the wrong type of key, no right.
type RefusedError string

func (e RefusedError) Error() string { return string(e) }

// tooOldError is a command that the server's module lacks. The script decides nothing beside a module.
type tooOldError string

func (e tooOldError) Error() string {
	return "swlimit: the server's module is too old for " + string(e) + ": load a newer one"
}

// Is makes errors.Is(err, ErrModuleMissing) true.
func (e tooOldError) Is(target error) bool { return target == ErrModuleMissing }

// unavailable is why the server could not be asked, or has not decided.
type unavailable struct {
	text    string // for people
	reason  string // of the words that all languages share
	cause   error
	sent    bool       // whether the server may have executed the command
	isReply bool       // the server said so itself, and has counted nothing
	callers bool       // the caller's own time ended, which says nothing of the server
	late    *lateGrant // what the server may still grant; nil: nothing
}

func (e *unavailable) Error() string {
	if e.cause == nil {
		return "swlimit: " + e.text
	}
	return fmt.Sprintf("swlimit: %s: %v", e.text, e.cause)
}

func (e *unavailable) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailable) Unwrap() error        { return e.cause }

var errNoTime = &unavailable{text: "no time is left to ask the server", reason: reasonNoAnswer, callers: true}

// isTimeUp tells whether an error is the end of the caller's own time, whatever was under way then.
func isTimeUp(err error) bool {
	var failed *unavailable
	if errors.As(err, &failed) {
		return failed.callers
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// keep says how many units of each key were granted in place of the reply whose error this is. What the server still
// grants beyond goes back.
func keep(err error, units ...int64) {
	var failed *unavailable
	if errors.As(err, &failed) && failed.late != nil {
		failed.late.keep(units)
	}
}

// A lateGrant is a reply that comes after its caller has gone. It and what the caller granted in its place come once
// each, in any order; then what the server granted beyond goes back.
type lateGrant struct {
	mu      sync.Mutex
	decided bool
	kept    []int64
	settle  func(kept []int64)
}

func (g *lateGrant) keep(units []int64) {
	g.mu.Lock()
	if g.decided {
		g.mu.Unlock()
		return
	}
	g.decided, g.kept = true, units
	settle := g.settle
	g.mu.Unlock()
	if settle != nil {
		settle(units)
	}
}

func (g *lateGrant) replied(settle func(kept []int64)) {
	g.mu.Lock()
	g.settle = settle
	decided, kept := g.decided, g.kept
	g.mu.Unlock()
	if decided {
		settle(kept)
	}
}

// serverError is an error reply as it came.
type serverError string

func (e serverError) Error() string { return quoted(string(e)) }

const oneTag = ": give the keys of one decision the same hash tag, such as {user:1}; a key with a brace needs one, too"

// unknownCommand matches what servers say of a command that they do not have. Managed ones have words of their own.
var unknownCommand = regexp.MustCompile("^ERR (unknown command|[Cc]ommand is not available|unsupported command)")

// lacksWarmUp matches what a module without WARMUP says of it: it takes the word for another option, or for the limit of
// the next key.
var lacksWarmUp = regexp.MustCompile("^ERR (syntax error near 'WARMUP'|limit must be )")

// understood is an error reply as the caller gets it.
func understood(e serverError) error {
	text := causeOf(string(e))
	reason := reasonOfReply(text)
	switch {
	case reason == reasonModuleMissing:
		return fmt.Errorf("%w (%s)", ErrModuleMissing, quoted(text))
	case reason != "" || strings.HasPrefix(text, "TRYAGAIN ") || strings.HasPrefix(text, "UNBLOCKED "):
		return &unavailable{text: quoted(text), reason: cmp.Or(reason, reasonOther), sent: true, isReply: true}
	case strings.HasPrefix(text, "CROSSSLOT "):
		return RefusedError(text + oneTag)
	}
	return RefusedError(quoted(text))
}

// causeOf is an error reply, or its cause where a transaction was refused for it.
func causeOf(text string) string {
	if cause, ok := strings.CutPrefix(text, "EXECABORT "); ok {
		if _, why, found := strings.Cut(cause, ": "); found {
			return why
		}
	}
	return text
}

// quoted is what a server said, for errors and logs: at most 100 bytes of it, escaped.
func quoted(text string) string {
	const most = 100
	cut := text
	if len(cut) > most {
		cut = cut[:most] + "…"
	}
	escaped := strconv.Quote(cut)
	return strings.ReplaceAll(escaped[1:len(escaped)-1], `\"`, `"`)
}
