package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/httplimit"
)

func ExampleMiddleware() {
	limiter, err := swlimit.New(nil, swlimit.Quota{Limit: 1, Window: time.Minute})
	if err != nil {
		panic(err)
	}
	welcome := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "welcome") })
	handler := httplimit.Middleware(limiter, httplimit.Address)(welcome)
	for range 2 {
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(response.Code, response.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// 200 "default";q=1;w=60
	// 429 "default";q=1;w=60
}
