package httplimit_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
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
	conn := swlimit.NewConn(swlimit.Server{Addr: "127.0.0.1:1"})
	defer conn.Close()
	limiter, err := swlimit.New(conn, swlimit.Quota{Limit: 1, Window: time.Minute}, swlimit.OnFailure(swlimit.Error))
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
