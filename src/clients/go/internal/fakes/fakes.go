// Package fakes is how package swlimittest has limiters answer on demand.
package fakes

import "time"

// Answers decide in place of what a limiter has counted.
type Answers interface {
	// Called gets each call of a method with its cost or units, and says for how long the key is denied or blocked: 0 for
	// not at all, and the largest duration for ever.
	Called(method, key string, cost int64) time.Duration
	// Block begins a block, and says what is left of it. One that holds already stays with unlessBlocked.
	Block(key string, d time.Duration, unlessBlocked bool) time.Duration
	// Unblock lifts a block, and tells whether there was one.
	Unblock(key string) bool
}

// Answer has a *swlimit.Limiter without a Client decide as the answers say. Package swlimit sets it.
var Answer func(limiter any, answers Answers)
