package swlimit

import (
	"fmt"
	"math"
	"time"
)

const (
	maxWindow       = 3650 * 24 * 60 * 60 * 1000 // ms
	maxSubintervals = 1_000_000                  // the most that any server allows, whatever its configuration
)

// A Quota says how much may be used in which window.
type Quota struct {
	// Limit is the number of units per window, 0 … 2^53 - 1. A limit of 0 admits nothing.
	Limit int64
	// Window is the length of the sliding window, in whole milliseconds: 1 ms … 3650 days.
	Window time.Duration
	// Resolution is the length of one subinterval, in whole milliseconds. It divides the window evenly. 0 means the
	// largest that is at most a twelfth of the window.
	Resolution time.Duration
	// Strict never grants more than the limit in any span of a window. Capacity comes back up to one resolution later.
	Strict bool
}

func (q Quota) checked() (quota, error) {
	window, err := milliseconds(q.Window, "window", 1)
	if err != nil {
		return quota{}, err
	}
	if err := integer(q.Limit, "limit", 0); err != nil {
		return quota{}, err
	}
	resolution := usualResolution(window)
	if q.Resolution != 0 {
		if resolution, err = milliseconds(q.Resolution, "resolution", 1); err != nil {
			return quota{}, err
		}
	}
	if window%resolution != 0 {
		return quota{}, wrong("resolution must divide the window evenly")
	}
	if n := window / resolution; n > maxSubintervals {
		return quota{}, wrong("window / resolution is %d subintervals, above what any server allows (%d)", n, maxSubintervals)
	}
	return quota{limit: q.Limit, window: window, resolution: resolution, strict: q.Strict}, nil
}

// usualResolution is the largest divisor of the window that is at most a twelfth of it and makes at most 4096
// subintervals; the window itself where there is none.
func usualResolution(window int64) int64 {
	for n := int64(12); n <= 4096; n++ {
		if window%n == 0 {
			return window / n
		}
	}
	return window
}

// milliseconds is a duration as the commands have it; what it is for is named in the error.
func milliseconds(d time.Duration, what string, least int64) (int64, error) {
	ms := d.Milliseconds()
	if d%time.Millisecond != 0 || ms < least || ms > maxWindow {
		return 0, wrong("%s must be whole milliseconds from %d ms to 3650 days, not %v", what, least, d)
	}
	return ms, nil
}

func integer(n int64, what string, least int64) error {
	if n < least || n > maxExact {
		return wrong("%s must be an integer between %d and %d, not %d", what, least, int64(maxExact), n)
	}
	return nil
}

func wrong(format string, words ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrArgument}, words...)...)
}

// shareOf is a part of a limit, rounded up, with the part in whole millionths.
func shareOf(limit int64, share float64) int64 {
	return scaleUp(limit, int64(math.Round(share*1_000_000)), 1_000_000)
}

// patience is how long the limiter may wait for a caller that waits so much longer: it decides a tenth before, at least
// 1 and at most 5 ms.
func patience(left time.Duration) time.Duration {
	if left < 2*time.Millisecond {
		return 0
	}
	return left - min(5*time.Millisecond, max(time.Millisecond, left/10))
}

// deniedFor is how long after a request was sent its denial holds: a millisecond less, because the server floors its
// clock, and a thousandth, because clocks are slewed.
func deniedFor(retryAfter int64) time.Duration {
	if retryAfter > math.MaxInt64/int64(time.Millisecond) {
		retryAfter = math.MaxInt64 / int64(time.Millisecond)
	}
	whole := time.Duration(retryAfter) * time.Millisecond
	return max(0, whole-time.Millisecond-whole/1000)
}
