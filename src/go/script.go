package swlimit

import (
	"crypto/sha1"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"
)

// script decides what the module's commands decide, on servers that load no modules. It is a copy of
// src/lua/swlimit.lua, because a Go module holds only what is below its folder.
//
//go:embed swlimit.lua
var script string

var scriptSHA = func() string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}()

// scriptSubintervals is the most that the script takes.
const scriptSubintervals = 4096

// scripted are the module's commands that the script has too; ADMIT unless it names a hold.
var scripted = map[string]bool{"ALLOW": true, "PEEK": true, "RECORD": true, "REFUND": true, "BLOCK": true,
	"UNBLOCK": true, "INFO": true, "MALLOW": true, "BUDGET": true, "ADMIT": true}

// A dialect says how one connection is asked: in the module's commands, or by the script.
type dialect struct {
	byScript  bool
	noReadSHA bool         // the server has no EVALSHA_RO
	clock     func() int64 // this machine's, in Unix ms, where the script may not ask the server for the time
}

// words are a command as it is sent; whole with the script itself.
func (d dialect) words(c *command, whole bool) []string {
	name, isOurs := strings.CutPrefix(c.words[0], "SWLIMIT.")
	if !d.byScript || !isOurs || !scripted[name] || (name == "ADMIT" && slices.Contains(c.words, "HOLD")) {
		return c.words
	}
	call, body := "EVALSHA", scriptSHA
	if whole {
		call, body = "EVAL", script
	}
	if c.reads && !d.noReadSHA {
		call += "_RO"
	}
	keys := c.keyWords()
	rest := c.words[2:]
	if name == "MALLOW" || name == "ADMIT" {
		rest = rest[len(keys):]
	}
	sent := append([]string{call, body, strconv.Itoa(len(keys))}, keys...)
	at := int64(-1)
	if d.clock != nil && name != "INFO" {
		at = d.clock()
	}
	if packed, ok := packed(name, rest, at); ok {
		return append(sent, packed)
	}
	sent = append(append(sent, name), rest...)
	if at >= 0 {
		sent = append(sent, "AT", number(at))
	}
	return sent
}

// packed is an ALLOW or a PEEK as one word, which the server reads faster; at < 0: by the server's clock.
func packed(name string, words []string, at int64) (string, bool) {
	if (name != "ALLOW" && name != "PEEK") || slices.Contains(words, "BLOCK") {
		return "", false
	}
	limit, _ := strconv.ParseInt(words[0], 10, 64)
	window, _ := strconv.ParseInt(strings.TrimSuffix(words[1], "ms"), 10, 64)
	resolution, _ := strconv.ParseInt(strings.TrimSuffix(words[2], "ms"), 10, 64)
	cost, flags := int64(1), byte(0)
	if name == "ALLOW" {
		flags |= 1
	}
	for i, word := range words[3:] {
		switch word {
		case "COST":
			cost, _ = strconv.ParseInt(words[3+i+1], 10, 64)
		case "PARTIAL":
			flags |= 2
		case "STRICT":
			flags |= 4
		}
	}
	if resolution == 0 || window/resolution > scriptSubintervals {
		return "", false
	}
	b := append(make([]byte, 0, 41), flags)
	for _, n := range []int64{limit, resolution, window / resolution, cost} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	if at >= 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
	}
	return string(b), true
}

// unpacked is the module's reply where the script has packed it into three doubles.
func unpacked(raw any, c *command) any {
	text, ok := raw.(string)
	if !ok || len(text) != 24 || (c.words[0] != "SWLIMIT.ALLOW" && c.words[0] != "SWLIMIT.PEEK") {
		return raw
	}
	double := func(at int) int64 {
		return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(text[at : at+8]))))
	}
	limit, _ := strconv.ParseInt(c.words[2], 10, 64)
	first, second, reset := double(0), double(8), double(16)
	if first > 0 {
		return []any{first, limit, second, int64(0), reset}
	}
	return []any{int64(0), limit, -first, second, reset}
}
