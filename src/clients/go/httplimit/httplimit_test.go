package httplimit_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/httplimit"
)

func TestMiddleware(t *testing.T) {
	limiter, err := swlimit.New(nil, swlimit.Quota{Limit: 1, Window: time.Minute}, swlimit.Name(`a "name"`))
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	handler := httplimit.Middleware(limiter, func(r *http.Request) string { return r.Header.Get("User") })(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { served++ }))
	ask := func(user string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("User", user)
		handler.ServeHTTP(w, r)
		return w
	}
	granted, denied := ask("me"), ask("me")
	if h := granted.Header(); granted.Code != 200 || h.Get("RateLimit-Policy") != `"a \"name\"";q=1;w=60` ||
		h.Get("RateLimit") != `"a \"name\"";r=0;t=65` && h.Get("RateLimit") == "" || h.Get("Retry-After") != "" {
		t.Errorf("%d %v", granted.Code, h)
	}
	if h := denied.Header(); denied.Code != 429 || h.Get("Retry-After") == "" || served != 1 {
		t.Errorf("%d %v, %d served", denied.Code, h, served)
	}
	if ask("").Code != 200 || ask("").Header().Get("RateLimit") != "" {
		t.Error("limited without a key")
	}
}

func TestUnavailable(t *testing.T) {
	conn, err := swlimit.NewClient(swlimit.Server{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	limiter, err := swlimit.New(conn, swlimit.Quota{Limit: 1, Window: time.Minute}, swlimit.OnFailure(swlimit.FailError))
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	handler := httplimit.Middleware(limiter, httplimit.Address)(http.NotFoundHandler())
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d", w.Code)
	}
}

// A deadline that has passed is no grant, and no answer that looks like one.
func TestDeadline(t *testing.T) {
	limiter, err := swlimit.New(nil, swlimit.Quota{Limit: 1, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	defer cancel()
	w := httptest.NewRecorder()
	handler := httplimit.Middleware(limiter, httplimit.Address)(http.NotFoundHandler())
	handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d", w.Code)
	}
}

func TestDenied(t *testing.T) {
	for after, want := range map[time.Duration][2]string{1200 * time.Millisecond: {"2", "1200"},
		time.Microsecond: {"1", "1"}, swlimit.Never: {"", ""}, swlimit.Unknown: {"", ""}} {
		h := http.Header{}
		httplimit.SetDenied(h, &swlimit.DeniedError{Decision: swlimit.Decision{RetryAfter: after}})
		if got := [2]string{h.Get("Retry-After"), h.Get("retry-after-ms")}; got != want {
			t.Errorf("%v: %v", after, got)
		}
	}
}

func TestAddress(t *testing.T) {
	text, err := os.ReadFile("../../../../tests/conformance/vectors/addresses.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Address, Key string }
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 10 {
		t.Fatal(len(cases), err)
	}
	for _, c := range cases {
		if got := httplimit.Address(&http.Request{RemoteAddr: c.Address}); got != c.Key {
			t.Errorf("%s: %s instead of %s", c.Address, got, c.Key)
		}
	}
	for remote, want := range map[string]string{"192.0.2.1:5": "192.0.2.1", "[2001:db8:1:2:3::6]:5": "2001:db8:1:2::/64"} {
		if got := httplimit.Address(&http.Request{RemoteAddr: remote}); got != want {
			t.Errorf("%s: %s", remote, got)
		}
	}
}

func TestOptions(t *testing.T) {
	limits, err := swlimit.NewLimits(nil, "10/minute; 20/hour")
	if err != nil {
		t.Fatal(err)
	}
	handler := httplimit.LimitsMiddleware(limits, httplimit.Address,
		httplimit.Cost(func(r *http.Request) int64 { return int64(len(r.URL.Query())) }),
		httplimit.OnDenied(func(w http.ResponseWriter, _ *http.Request, d swlimit.Decision) {
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte(d.RetryAfter.String()))
		}))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	ask := func(ctx context.Context, query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/?"+query, nil))
		return w
	}
	ctx := context.Background()
	granted := ask(ctx, "a&b&c&d&e&f")
	if policies := granted.Header()["Ratelimit-Policy"]; granted.Code != http.StatusAccepted || len(policies) != 2 ||
		policies[0] != `"default:60000";q=10;w=60` {
		t.Errorf("%d %v", granted.Code, granted.Header())
	}
	if denied := ask(ctx, "a&b&c&d&e&f"); denied.Code != http.StatusTeapot || denied.Header().Get("Retry-After") == "" ||
		denied.Body.Len() == 0 {
		t.Errorf("%d %v", denied.Code, denied.Header())
	}
	if free := ask(ctx, ""); free.Code != http.StatusAccepted || free.Header().Get("RateLimit-Policy") != "" {
		t.Errorf("%d %v", free.Code, free.Header())
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if left := ask(gone, "a"); left.Code != 499 {
		t.Errorf("%d is logged of a client that has gone", left.Code)
	}
}

// What a client writes into X-Forwarded-For counts for nothing.
func TestForwarded(t *testing.T) {
	key := httplimit.Forwarded(netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32"))
	for _, c := range []struct {
		remote string
		hops   []string
		want   string
	}{
		{"198.51.100.1:5", []string{"203.0.113.9"}, "198.51.100.1"},
		{"10.0.0.1:5", []string{"203.0.113.9"}, "203.0.113.9"},
		{"10.0.0.1:5", []string{"6.6.6.6, 203.0.113.9, 192.0.2.7"}, "203.0.113.9"},
		{"10.0.0.1:5", []string{"6.6.6.6", "203.0.113.9"}, "203.0.113.9"},
		{"10.0.0.1:5", []string{"2001:db8:1:2:3::6"}, "2001:db8:1:2::/64"},
		{"10.0.0.1:5", []string{"unknown"}, "10.0.0.1"},
		{"10.0.0.1:5", nil, "10.0.0.1"},
	} {
		r := &http.Request{RemoteAddr: c.remote, Header: http.Header{"X-Forwarded-For": c.hops}}
		if got := key(r); got != c.want {
			t.Errorf("%s, %v: %s instead of %s", c.remote, c.hops, got, c.want)
		}
	}
}

// pushing is what a server of HTTP/2 gives a handler.
type pushing struct {
	http.ResponseWriter
	pushed string
}

func (p *pushing) Push(target string, _ *http.PushOptions) error { p.pushed = target; return nil }

func TestPushes(t *testing.T) {
	adaptive, err := swlimit.NewAdaptive(swlimit.AdaptiveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w := &pushing{ResponseWriter: httptest.NewRecorder()}
	httplimit.Adapt(adaptive)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if err := w.(http.Pusher).Push("/style.css", nil); err != nil {
			t.Error(err)
		}
	})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.pushed != "/style.css" {
		t.Error("nothing was pushed")
	}
}
