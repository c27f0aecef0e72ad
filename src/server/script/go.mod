module github.com/swlimit/swlimit/src/server/script

go 1.25.0
