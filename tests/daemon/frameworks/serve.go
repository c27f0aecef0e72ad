// Serve POST /login, GET /page and DELETE /item by Go's own router, until stdin ends. It prints its port.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	mux := http.NewServeMux()
	for _, route := range []string{"POST /login", "GET /page", "DELETE /item"} {
		mux.HandleFunc(route, func(response http.ResponseWriter, _ *http.Request) { fmt.Fprint(response, "ok") })
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go http.Serve(listener, mux)
	fmt.Printf("{\"Go's net/http, `ServeMux`\": %d}\n", listener.Addr().(*net.TCPAddr).Port)
	io.Copy(io.Discard, os.Stdin)
}
