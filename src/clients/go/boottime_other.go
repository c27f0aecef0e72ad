//go:build !linux

package swlimit

import "time"

// sinceBoot is time that also passes while the machine sleeps, where the wall clock tells: never less than there was.
func sinceBoot() time.Duration {
	return max(now(), time.Now().Round(0).Sub(began.Round(0)))
}
