//go:build never

// Package tests names the packages whose versions go.mod pins: the tests fetch them by it.
package tests

import (
	_ "github.com/gin-gonic/gin"
	_ "github.com/go-chi/chi/v5"
	_ "github.com/go-redis/redis_rate/v10"
	_ "github.com/labstack/echo/v5"
	_ "github.com/redis/go-redis/v9"
	_ "github.com/stretchr/testify/assert"
	_ "github.com/swlimit/swlimit/src/clients/go"
	_ "github.com/swlimit/swlimit/src/clients/go/grpclimit"
	_ "github.com/swlimit/swlimit/src/clients/go/httplimit"
	_ "github.com/swlimit/swlimit/src/clients/go/redisrate"
	_ "google.golang.org/grpc/health"
)
