module github.com/swlimit/swlimit/src/clients/go/redisrate

go 1.25.0

require (
	github.com/redis/go-redis/v9 v9.23.0
	github.com/swlimit/swlimit/src/clients/go v0.2.0
	github.com/swlimit/swlimit/src/clients/go/goredis v0.2.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	github.com/swlimit/swlimit/src/server/script v0.2.0 // indirect
)
