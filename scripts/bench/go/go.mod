// What swlimit is compared with in Go.
module github.com/swlimit/swlimit/scripts/bench/go

go 1.26.0

replace (
	github.com/swlimit/swlimit/src/clients/go => ../../../src/clients/go
	github.com/swlimit/swlimit/src/clients/go/goredis => ../../../src/clients/go/goredis
	github.com/swlimit/swlimit/src/clients/go/redisrate => ../../../src/clients/go/redisrate
	github.com/swlimit/swlimit/src/server/script => ../../../src/server/script
)

require (
	github.com/go-redis/redis_rate/v10 v10.0.1
	github.com/redis/go-redis/v9 v9.23.0
	github.com/swlimit/swlimit/src/clients/go v0.2.0
	github.com/swlimit/swlimit/src/clients/go/goredis v0.2.0
	github.com/swlimit/swlimit/src/clients/go/redisrate v0.2.0
	github.com/ulule/limiter/v3 v3.11.2
	golang.org/x/time v0.16.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/swlimit/swlimit/src/server/script v0.2.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
