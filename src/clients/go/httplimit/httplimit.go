// Package httplimit limits the requests of net/http handlers. A router that takes a func(http.Handler) http.Handler,
// such as chi, takes the middleware as it is.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
)

// Middleware limits requests by a key. A denied one is answered with 429 and Retry-After; each response has the
// headers RateLimit and RateLimit-Policy. key says whom a request counts for: see [Address]. A request for which it
// says "" is not limited. Where the limiter returns an error (its OnFailure is Error, or the server refuses), the
// answer is 503.
func Middleware(limiter *swlimit.Limiter, key func(*http.Request) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name := key(r)
			if name == "" {
				next.ServeHTTP(w, r)
				return
			}
			decision, err := limiter.Allow(r.Context(), name)
			switch {
			case errors.Is(r.Context().Err(), context.Canceled):
				return // the client has gone
			case err != nil:
				ignore(r)
				if !errors.Is(err, swlimit.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
					slog.Error("swlimit: a request could not be limited", "error", err)
				}
				http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
				return
			}
			SetHeaders(w.Header(), limiter, decision)
			if !decision.Allowed() {
				ignore(r)
				http.Error(w, "Too Many Requests", http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// SetHeaders sets what a response says of a decision: RateLimit-Policy, RateLimit where it is known, and Retry-After
// of a denial. Times are whole seconds, rounded up.
func SetHeaders(h http.Header, limiter *swlimit.Limiter, d swlimit.Decision) {
	name := quoted(limiter.Name())
	h.Set("RateLimit-Policy", fmt.Sprintf("%s;q=%d;w=%d", name, d.Limit, seconds(limiter.Quota().Window)))
	if left, known := d.Remaining(); known && d.ResetAfter != swlimit.Unknown {
		h.Set("RateLimit", fmt.Sprintf("%s;r=%d;t=%d", name, left, seconds(d.ResetAfter)))
	}
	if !d.Allowed() {
		setRetryAfter(h, d.RetryAfter)
	}
}

// SetDenied sets what a response says of a denied admission: Retry-After, and retry-after-ms, which clients of language
// models read. A denial that no time helps sets neither: answer it with 400.
func SetDenied(h http.Header, denied *swlimit.DeniedError) {
	if after := denied.RetryAfter(); setRetryAfter(h, after) {
		h.Set("retry-after-ms", strconv.FormatInt(int64(math.Ceil(after.Seconds()*1000)), 10))
	}
}

// setRetryAfter tells whether there is a time to retry after.
func setRetryAfter(h http.Header, after time.Duration) bool {
	if after == swlimit.Never || after == swlimit.Unknown {
		return false
	}
	h.Set("Retry-After", strconv.FormatInt(seconds(after), 10))
	return true
}

func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// quoted is a string of a structured field, which holds printable ASCII only.
func quoted(name string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range name {
		switch {
		case r < ' ' || r > '~':
			r = '?'
		case r == '"' || r == '\\':
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	b.WriteByte('"')
	return b.String()
}

// Address is the key of a client by the address that has connected. IPv6 clients count by network of 64 bits, and those
// behind NAT64 by their IPv4 address. Behind a proxy take the address that the proxy names instead.
func Address(r *http.Request) string {
	address, err := netip.ParseAddr(r.RemoteAddr)
	if err != nil {
		both, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			return r.RemoteAddr
		}
		address = both.Addr()
	}
	address = address.Unmap().WithZone("")
	if nat64.Contains(address) {
		bytes := address.As16()
		address = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	if address.Is6() {
		network, _ := address.Prefix(64)
		return network.String()
	}
	return address.String()
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")
