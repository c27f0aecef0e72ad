package swlimit

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"time"
)

var (
	// ErrArgument is matched by errors about wrong arguments.
	ErrArgument = errors.New("swlimit: wrong argument")
	// ErrDenied is matched by the errors of Wait and of [Holds.Acquire] when nothing was granted: see [DeniedError].
	ErrDenied = errors.New("swlimit: denied")
	// ErrUnavailable is matched by errors that say that the server could not be asked, or did not answer in time.
	ErrUnavailable = errors.New("swlimit: the server does not answer")
	// ErrModuleMissing is matched where the server has no module swlimit, and the script cannot do without it; and where
	// the module is too old for a command.
	ErrModuleMissing = errors.New("swlimit: the server does not have the module: load it with " +
		"`MODULE LOAD /path/to/swlimit.so`")
	// ErrClosed is matched by errors of a Conn that was closed.
	ErrClosed = errors.New("swlimit: closed")
	// ErrLost is the cause that the context of a lost hold is cancelled with.
	ErrLost = errors.New("swlimit: the hold is lost")

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
	if e.again != 0 {
		return e.again
	}
	return e.Decision.RetryAfter
}

func (e *DeniedError) Error() string {
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

// unavailable is why the server could not be asked.
type unavailable struct {
	reason  string
	cause   error
	sent    bool // whether the server may have executed the command
	callers bool // the caller's own time ended, which says nothing of the server

	kept atomic.Bool // somebody granted in place of the reply: what it grants too late stays counted
}

func (e *unavailable) Error() string {
	if e.cause == nil {
		return "swlimit: " + e.reason
	}
	return fmt.Sprintf("swlimit: %s: %v", e.reason, e.cause)
}

func (e *unavailable) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailable) Unwrap() error        { return e.cause }

var errNoTime = &unavailable{reason: "no time is left to ask the server", callers: true}

// isTimeUp tells whether an error is the end of the caller's own time, whatever was under way then.
func isTimeUp(err error) bool {
	var failed *unavailable
	if errors.As(err, &failed) {
		return failed.callers
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// keep says that somebody granted in place of the reply whose error this is.
func keep(err error) {
	var failed *unavailable
	if errors.As(err, &failed) {
		failed.kept.Store(true)
	}
}

// serverError is an error reply as it came.
type serverError string

func (e serverError) Error() string { return string(e) }

// condition matches errors that are about the server's condition, not the caller's mistakes.
var condition = regexp.MustCompile("^(NOAUTH|WRONGPASS|LOADING|MASTERDOWN|READONLY|MISCONF|OOM|NOREPLICAS|CLUSTERDOWN" +
	"|BUSY|FAILOVER|MOVED|ASK|TRYAGAIN|UNBLOCKED|ERR max number of clients)\\b")

const oneTag = ": give the keys of one decision the same hash tag, such as {user:1}; a key with a brace needs one, too"

// unknownCommand matches what servers say of a command that they do not have. Managed ones have words of their own.
var unknownCommand = regexp.MustCompile("^ERR (unknown command|[Cc]ommand is not available|unsupported command)")

// understood is an error reply as the caller gets it.
func understood(e serverError) error {
	text := string(e)
	if cause, ok := strings.CutPrefix(text, "EXECABORT "); ok {
		if _, why, found := strings.Cut(cause, ": "); found {
			text = why
		}
	}
	switch {
	case unknownCommand.MatchString(text):
		return fmt.Errorf("%w (%s)", ErrModuleMissing, text)
	case condition.MatchString(text):
		return &unavailable{reason: string(e), sent: true}
	case strings.HasPrefix(text, "CROSSSLOT "):
		return RefusedError(e + oneTag)
	}
	return RefusedError(e)
}
