module github.com/swlimit/swlimit/src/clients/go/rueidisgo

go 1.25.0

require (
	github.com/redis/rueidis v1.0.79
	github.com/swlimit/swlimit/src/clients/go v0.2.0
)

require (
	github.com/swlimit/swlimit/src/server/script v0.2.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)
