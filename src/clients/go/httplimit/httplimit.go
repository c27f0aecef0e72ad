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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
)

// statusClientClosed is what proxies log where the client has gone before its answer.
const statusClientClosed = 499

// An Option changes what a middleware does.
type Option func(*settings)

type settings struct {
	denied func(http.ResponseWriter, *http.Request, swlimit.Decision)
	cost   func(*http.Request) int64
}

// OnDenied answers denied requests in place of 429 with a short text. The headers are set by then.
func OnDenied(answer func(w http.ResponseWriter, r *http.Request, d swlimit.Decision)) Option {
	return func(s *settings) { s.denied = answer }
}

// Cost says how many units a request costs, in place of 1. A request that costs 0 is not limited.
func Cost(units func(r *http.Request) int64) Option {
	return func(s *settings) { s.cost = units }
}

// Middleware limits requests by a key. A denied one is answered with 429 and Retry-After; each response has the
// headers RateLimit and RateLimit-Policy. key says which client a request counts for: see [Address] and [Forwarded]. A
// request for which it says "" is not limited. Where the limiter returns an error (its OnFailure is FailError, or the
// server refuses), the answer is 503. Where the client has gone, it is 499.
func Middleware(limiter *swlimit.Limiter, key func(*http.Request) string,
	options ...Option) func(http.Handler) http.Handler {
	return middleware(key, options, func(w http.ResponseWriter, r *http.Request, name string,
		n int64) (swlimit.Decision, error) {
		decision, err := limiter.AllowN(r.Context(), name, n)
		if err == nil {
			SetHeaders(w.Header(), limiter, decision)
		}
		return decision, err
	})
}

// LimitsMiddleware is [Middleware] of several rates, which decide together. The headers name each rate.
func LimitsMiddleware(limits *swlimit.Limits, key func(*http.Request) string,
	options ...Option) func(http.Handler) http.Handler {
	return middleware(key, options, func(w http.ResponseWriter, r *http.Request, name string,
		n int64) (swlimit.Decision, error) {
		decisions, err := limits.AllowN(r.Context(), name, n)
		if err != nil {
			return swlimit.Decision{}, err
		}
		SetLimitsHeaders(w.Header(), limits, decisions)
		return decisions.Worst(), nil
	})
}

type deciding func(w http.ResponseWriter, r *http.Request, name string, n int64) (swlimit.Decision, error)

func middleware(key func(*http.Request) string, options []Option, decide deciding) func(http.Handler) http.Handler {
	s := settings{
		denied: func(w http.ResponseWriter, _ *http.Request, _ swlimit.Decision) {
			http.Error(w, "Too Many Requests", http.StatusTooManyRequests)
		},
		cost: func(*http.Request) int64 { return 1 },
	}
	for _, option := range options {
		if option != nil {
			option(&s)
		}
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			name, n := key(r), s.cost(r)
			if name == "" || n == 0 {
				next.ServeHTTP(w, r)
				return
			}
			decision, err := decide(w, r, name, n)
			switch {
			case errors.Is(r.Context().Err(), context.Canceled):
				ignore(r)
				w.WriteHeader(statusClientClosed)
			case err != nil:
				ignore(r)
				if !errors.Is(err, swlimit.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
					slog.Error("swlimit: a request could not be limited", "error", err)
				}
				http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
			case !decision.Allowed():
				ignore(r)
				s.denied(w, r, decision)
			default:
				next.ServeHTTP(w, r)
			}
		})
	}
}

// SetHeaders sets what a response says of a decision: RateLimit-Policy, RateLimit where it is known, and Retry-After
// of a denial. Times are whole seconds, rounded up.
func SetHeaders(h http.Header, limiter *swlimit.Limiter, d swlimit.Decision) {
	clearHeaders(h)
	addHeaders(h, limiter.Name(), limiter, d)
	if !d.Allowed() {
		setRetryAfter(h, d.RetryAfter)
	}
}

// SetLimitsHeaders is [SetHeaders] of several rates, each by its name and the length of its window in ms.
func SetLimitsHeaders(h http.Header, limits *swlimit.Limits, decisions swlimit.Decisions) {
	clearHeaders(h)
	for i, limiter := range limits.Limiters() {
		name := fmt.Sprintf("%s:%d", limiter.Name(), limiter.Quota().Window.Milliseconds())
		addHeaders(h, name, limiter, decisions.Each[i])
	}
	if !decisions.Allowed {
		setRetryAfter(h, decisions.RetryAfter())
	}
}

func clearHeaders(h http.Header) {
	h.Del("RateLimit-Policy")
	h.Del("RateLimit")
}

// addHeaders adds a member to the lists RateLimit-Policy and RateLimit.
func addHeaders(h http.Header, name string, limiter *swlimit.Limiter, d swlimit.Decision) {
	name = quoted(name)
	h.Add("RateLimit-Policy", fmt.Sprintf("%s;q=%d;w=%d", name, d.Limit, seconds(limiter.Quota().Window)))
	if left, known := d.Remaining(); known && d.ResetAfter != swlimit.Unknown {
		h.Add("RateLimit", fmt.Sprintf("%s;r=%d;t=%d", name, left, seconds(d.ResetAfter)))
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
// behind NAT64 by their IPv4 address. Behind a proxy see [Forwarded].
func Address(r *http.Request) string {
	address, ok := addressOf(r.RemoteAddr)
	if !ok {
		return r.RemoteAddr
	}
	return keyOf(address)
}

// Forwarded is the key of a client behind proxies: the last address of X-Forwarded-For that is in none of the trusted
// networks, which are those of your proxies. What a client itself writes into that header counts for nothing: it stands
// before what the first proxy has added. A client that is no trusted proxy counts by the address that has connected.
func Forwarded(trusted ...netip.Prefix) func(*http.Request) string {
	isTrusted := func(address netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(network netip.Prefix) bool { return network.Contains(address) })
	}
	return func(r *http.Request) string {
		address, ok := addressOf(r.RemoteAddr)
		if !ok {
			return r.RemoteAddr
		}
		hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		for at := len(hops) - 1; at >= 0 && isTrusted(address); at-- {
			before, ok := addressOf(strings.TrimSpace(hops[at]))
			if !ok {
				break
			}
			address = before
		}
		return keyOf(address)
	}
}

// addressOf is an address with or without a port.
func addressOf(text string) (netip.Addr, bool) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		both, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, false
		}
		address = both.Addr()
	}
	return address.Unmap().WithZone(""), true
}

func keyOf(address netip.Addr) string {
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
