"""What is published: each module as a zip, as proxies serve them, in the module of somebody who has no clone."""

import json
import zipfile
from pathlib import Path

import pytest

from support import golang

pytestmark = pytest.mark.long

VERSION = "v0.2.0"
PROGRAM = """package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/swlimit/swlimit/src/clients/go"
	"github.com/swlimit/swlimit/src/clients/go/goredis"
	"github.com/swlimit/swlimit/src/clients/go/grpclimit"
	"github.com/swlimit/swlimit/src/clients/go/httplimit"
	"github.com/swlimit/swlimit/src/clients/go/redisrate"
	"github.com/swlimit/swlimit/src/clients/go/valkeygo"
	"github.com/valkey-io/valkey-go"
)

func main() {
	conn, err := goredis.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:PORT"}))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	other, err := valkeygo.New(valkey.ClientOption{InitAddress: []string{"127.0.0.1:PORT"}})
	if err != nil {
		panic(err)
	}
	defer other.Close()
	limiter, err := swlimit.New(conn, swlimit.Quota{Limit: 1, Window: time.Minute}, swlimit.Timeout(20*time.Second))
	if err != nil {
		panic(err)
	}
	for range 2 {
		decision, err := limiter.Allow(context.Background(), "stranger")
		_, _ = redis_rate.FromClient(conn).Allow(context.Background(), "stranger", redis_rate.PerHour(1))
		_ = grpclimit.Unary(limiter, grpclimit.Address)
		fmt.Println(decision.Allowed(), decision.Source, err, httplimit.Middleware(limiter, httplimit.Address) != nil)
	}
}
"""


def test_modules_of_a_stranger(server, tmp_path):
    proxy, mine = tmp_path / "proxy", tmp_path / "mine"
    for folder in golang.FOLDERS:
        serve(folder, proxy)
    mine.mkdir()
    (mine / "main.go").write_text(PROGRAM.replace("PORT", str(server.port)))
    others = Path(golang.run("env", "GOMODCACHE").stdout.strip(), "cache/download")
    env = {"GOPROXY": f"file://{proxy},file://{others}", "GOMODCACHE": str(tmp_path / "modules"), "GOSUMDB": "off",
           "GOFLAGS": "-mod=mod -modcacherw", "GOWORK": "off"}
    for words in (("mod", "init", "example.com/stranger"), ("mod", "tidy"), ("run", ".")):
        done = golang.run(*words, cwd=mine, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "true server <nil> true\nfalse server <nil> true\n"
    assert "replace" not in (mine / "go.mod").read_text()


def serve(folder, proxy):
    """Put a module where a proxy has it: without the modules below its folder."""
    declared = (folder / "go.mod").read_text()
    name = declared.splitlines()[0].removeprefix("module ")
    assert "replace" not in declared
    place = proxy / name / "@v"
    place.mkdir(parents=True)
    (place / "list").write_text(f"{VERSION}\n")
    (place / f"{VERSION}.info").write_text(json.dumps({"Version": VERSION}))
    (place / f"{VERSION}.mod").write_text(declared)
    below = [path.parent for path in folder.rglob("go.mod") if path.parent != folder]
    with zipfile.ZipFile(place / f"{VERSION}.zip", "w") as archive:
        for path in folder.rglob("*"):
            if path.is_file() and not any(path.is_relative_to(other) for other in below):
                archive.write(path, f"{name}@{VERSION}/{path.relative_to(folder)}")
