module github.com/swlimit/swlimit/src/go

go 1.26.0
