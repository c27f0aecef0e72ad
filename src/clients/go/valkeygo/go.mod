module github.com/swlimit/swlimit/src/clients/go/valkeygo

go 1.25.0

require (
	github.com/swlimit/swlimit/src/clients/go v0.2.0
	github.com/valkey-io/valkey-go v1.0.79
	github.com/swlimit/swlimit/src/server/script v0.2.0 // indirect
)

require golang.org/x/sys v0.47.0 // indirect
