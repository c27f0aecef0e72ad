package swlimit

import (
	"math"
	"time"
)

const (
	// Never is a RetryAfter that does not help: the cost is above the limit.
	Never time.Duration = math.MaxInt64
	// Unknown stands for a duration that nobody has said.
	Unknown time.Duration = -1
)

// A Source says who made a decision.
type Source string

const (
	// FromServer is a decision of the server's.
	FromServer Source = "server"
	// FromCache is a denial that was known without asking, or a cost above the limit.
	FromCache Source = "cache"
	// FromEventual is a decision by what the server last said, of the mode [Eventual].
	FromEventual Source = "eventual"
	// FromFailure is a decision of [OnFailure], because the server was unavailable.
	FromFailure Source = "failure"
	// FromLocal is a decision of the mode [Local].
	FromLocal Source = "local"
)

// A Decision is the answer to one request.
type Decision struct {
	// Granted is the number of units granted: the cost, or with AllowAtMost part of it. 0 is a denial.
	Granted int64
	// Limit is the number of units per window.
	Limit int64
	// RetryAfter is the time until the same request would be granted if nothing else is counted: 0 when it was
	// granted, Never, or Unknown.
	RetryAfter time.Duration
	// ResetAfter is the time until nothing counts any more, or Unknown.
	ResetAfter time.Duration
	// Source says who decided.
	Source Source

	remaining int64 // -1: unknown
}

// Allowed tells whether anything was granted.
func (d Decision) Allowed() bool { return d.Granted > 0 }

// Never tells whether a retry never helps: the cost is above the limit.
func (d Decision) Never() bool { return !d.Allowed() && d.RetryAfter == Never }

// Remaining is the number of units that are still available, and whether that is known.
func (d Decision) Remaining() (int64, bool) { return max(0, d.remaining), d.remaining >= 0 }

func (r reply) decision(source Source) Decision {
	return Decision{r.granted, r.limit, duration(r.retryAfter), duration(r.resetAfter), source, r.remaining}
}

// unknown is a reply of which no more is known.
func unknown(granted, limit, retryAfter int64) reply {
	return reply{granted, limit, -1, retryAfter, unknownMS}
}

// unknownMS stands for Unknown among milliseconds, of which -1 is the protocol's never.
const unknownMS = -2

func duration(ms int64) time.Duration {
	switch {
	case ms == unknownMS:
		return Unknown
	case ms < 0 || ms > math.MaxInt64/int64(time.Millisecond):
		return Never
	}
	return time.Duration(ms) * time.Millisecond
}

// Decisions is the answer to several limits at once.
type Decisions struct {
	// Allowed tells whether all of them granted; else none has counted anything.
	Allowed bool
	// Each holds what each of them says, in order.
	Each []Decision
}

// RetryAfter is the time until all would grant: 0, Never where one never can, or Unknown.
func (d Decisions) RetryAfter() time.Duration {
	longest := Unknown
	for _, each := range d.Each {
		longest = max(longest, each.RetryAfter)
	}
	return longest
}

// Worst is the denial that lasts longest; the first decision where none denied.
func (d Decisions) Worst() Decision {
	if len(d.Each) == 0 {
		return Decision{}
	}
	worst := d.Each[0]
	for _, each := range d.Each {
		if each.Granted == 0 && (worst.Granted > 0 || each.RetryAfter > worst.RetryAfter) {
			worst = each
		}
	}
	return worst
}
