package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/httplimit"
)

func adaptive(t *testing.T, least int64) *swlimit.Adaptive {
	t.Helper()
	a, err := swlimit.NewAdaptive(swlimit.AdaptiveOptions{Min: least})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func answers(status int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "answer")
	})
}

var fine, dropped, ignored = swlimit.AdaptiveStatistics{Done: 1}, swlimit.AdaptiveStatistics{Dropped: 1},
	swlimit.AdaptiveStatistics{Ignored: 1}

func TestAdapt(t *testing.T) {
	limiter, err := swlimit.New(nil, swlimit.Quota{Limit: 0, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	denies := httplimit.Middleware(limiter, func(*http.Request) string { return "all" })
	past, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	left, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		handler http.Handler
		ctx     context.Context
		status  int
		want    swlimit.AdaptiveStatistics
	}{
		"fine":         {answers(200), nil, 200, fine},
		"nothing":      {http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil, 200, fine},
		"redirected":   {answers(302), nil, 302, fine},
		"not found":    {answers(404), nil, 404, ignored},
		"broken":       {answers(500), nil, 500, ignored},
		"overloaded":   {answers(503), nil, 503, dropped},
		"too many":     {answers(429), nil, 429, dropped},
		"timed out":    {answers(504), nil, 504, dropped},
		"of the fleet": {denies(answers(200)), nil, 429, ignored},
		"a deadline":   {answers(200), past, 200, dropped},
		"gone":         {answers(200), left, 200, ignored},
	} {
		a := adaptive(t, 20)
		if c.ctx == nil {
			c.ctx = context.Background()
		}
		w := httptest.NewRecorder()
		httplimit.Adapt(a)(c.handler).ServeHTTP(w, httptest.NewRequestWithContext(c.ctx, http.MethodGet, "/", nil))
		if w.Code != c.status || a.Statistics() != c.want || a.InFlight() != 0 {
			t.Errorf("%s: %d, %+v, %d under way", name, w.Code, a.Statistics(), a.InFlight())
		}
	}
	// Of one limit within another.
	all, some := adaptive(t, 20), adaptive(t, 20)
	httplimit.Adapt(all)(httplimit.Adapt(some)(denies(answers(200)))).ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequest(http.MethodGet, "/", nil))
	if all.Statistics() != ignored || some.Statistics() != ignored {
		t.Errorf("%+v, %+v", all.Statistics(), some.Statistics())
	}
	// One at once.
	one := adaptive(t, 1)
	inner := httptest.NewRecorder()
	var limited http.Handler
	limited = httplimit.Adapt(one)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limited.ServeHTTP(inner, r)
		w.(http.Flusher).Flush()
	}))
	outer := httptest.NewRecorder()
	limited.ServeHTTP(outer, httptest.NewRequest(http.MethodGet, "/", nil))
	if outer.Code != 200 || !outer.Flushed || inner.Code != 503 || one.InFlight() != 0 {
		t.Errorf("%d, %d", outer.Code, inner.Code)
	}
	func() {
		defer func() { _ = recover() }()
		httplimit.Adapt(one)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") })).
			ServeHTTP(outer, httptest.NewRequest(http.MethodGet, "/", nil))
	}()
	if one.Statistics() != (swlimit.AdaptiveStatistics{Done: 1, Ignored: 1, Denied: 1}) {
		t.Errorf("%+v", one.Statistics())
	}
}

// A connection that is taken over still works, and says nothing.
func TestAdaptHijacked(t *testing.T) {
	a := adaptive(t, 1)
	over := make(chan struct{})
	takes := httplimit.Adapt(a)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
		conn.Close()
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		takes.ServeHTTP(w, r)
		close(over)
	}))
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	<-over
	server.Close()
	if string(text) != "hi" || err != nil || a.Statistics() != ignored {
		t.Errorf("%q, %v, %+v", text, err, a.Statistics())
	}
}

func TestTransport(t *testing.T) {
	for status, want := range map[int]swlimit.AdaptiveStatistics{200: fine, 404: ignored, 503: dropped, 429: dropped} {
		server := httptest.NewServer(answers(status))
		defer server.Close()
		a := adaptive(t, 1)
		client := &http.Client{Transport: httplimit.Transport(a, nil)}
		response, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if status == 200 { // until its body is read
			if _, err := client.Get(server.URL); !errors.Is(err, swlimit.ErrDenied) {
				t.Error(err)
			}
			want.Denied = 1
		}
		if text, err := io.ReadAll(response.Body); string(text) != "answer" || err != nil || a.InFlight() != 0 {
			t.Errorf("%q, %v, %d under way", text, err, a.InFlight())
		}
		response.Body.Close()
		if a.Statistics() != want {
			t.Errorf("%d: %+v", status, a.Statistics())
		}
		server.Close()
		if _, err := client.Get(server.URL); err == nil || a.InFlight() != 0 { // which is refused
			t.Error(err)
		}
		if want.Ignored++; a.Statistics() != want {
			t.Errorf("%d: %+v", status, a.Statistics())
		}
	}
	held := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begins" {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
		}
		<-held
	}))
	defer silent.Close()
	defer close(held)
	a := adaptive(t, 1)
	client := &http.Client{Transport: httplimit.Transport(a, nil), Timeout: 300 * time.Millisecond}
	if _, err := client.Get(silent.URL); !swlimit.IsTimeout(err) || a.Statistics() != dropped {
		t.Errorf("%v, %+v", err, a.Statistics())
	}
	client.Timeout = 0
	response, err := client.Get(silent.URL + "/begins")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close() // the rest is not wanted
	if want := (swlimit.AdaptiveStatistics{Done: 1, Dropped: 1}); a.Statistics() != want {
		t.Errorf("%+v", a.Statistics())
	}
}

// What cannot be taken over is answered after all, from a file as fast as without a permit.
func TestAdaptNotHijacked(t *testing.T) {
	a := adaptive(t, 1)
	w := &reading{ResponseRecorder: httptest.NewRecorder()}
	httplimit.Adapt(a)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Error(err)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.Copy(w, io.LimitReader(strings.NewReader("too busy"), 8))
	})).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if a.Statistics() != dropped || w.Body.String() != "too busy" || !w.hasRead {
		t.Errorf("%+v, %q, %v", a.Statistics(), w.Body, w.hasRead)
	}
}

// reading is a ResponseWriter that sends files by itself, as that of a server does.
type reading struct {
	*httptest.ResponseRecorder
	hasRead bool
}

func (r *reading) ReadFrom(source io.Reader) (int64, error) {
	r.hasRead = true
	return io.Copy(r.Body, source)
}

// An answer whose time is up or whose caller has gone is no good sample, though it is closed and not read. An answer
// without a body is over when it comes.
func TestTransportsWithoutAWholeBody(t *testing.T) {
	past, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		body io.ReadCloser
		want swlimit.AdaptiveStatistics
	}{{past, io.NopCloser(strings.NewReader("answer")), dropped}, {gone, io.NopCloser(strings.NewReader("answer")), ignored},
		{context.Background(), http.NoBody, fine}} {
		a := adaptive(t, 1)
		response, err := httplimit.Transport(a, answer{c.body}).RoundTrip(
			httptest.NewRequestWithContext(c.ctx, http.MethodGet, "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		if c.body != http.NoBody {
			response.Body.Close()
		}
		if a.Statistics() != c.want {
			t.Errorf("%+v instead of %+v", a.Statistics(), c.want)
		}
	}
}

// answer is a transport whose answers have this body.
type answer struct{ body io.ReadCloser }

func (a answer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: a.body}, nil
}

func TestTransportsCloseIdleConnections(t *testing.T) {
	closed := false
	client := &http.Client{Transport: httplimit.Transport(adaptive(t, 1), idle{http.DefaultTransport, &closed})}
	if client.CloseIdleConnections(); !closed {
		t.Error("they are open")
	}
}

type idle struct {
	http.RoundTripper
	closed *bool
}

func (i idle) CloseIdleConnections() { *i.closed = true }

// panics is a transport that fails in an odd way.
type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("oops") }

func TestTransportsThatPanicKeepNoPermit(t *testing.T) {
	a := adaptive(t, 1)
	defer func() {
		if recover() == nil || a.InFlight() != 0 || a.Statistics() != ignored {
			t.Errorf("%d under way, %+v", a.InFlight(), a.Statistics())
		}
	}()
	httplimit.Transport(a, panics{}).RoundTrip(httptest.NewRequest("GET", "/", nil))
}
