module github.com/swlimit/swlimit/src/clients/go

go 1.25.0

require github.com/swlimit/swlimit/src/server/script v0.2.0
