package swlimit

import (
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"

	"github.com/swlimit/swlimit/src/server/script"
)

var scriptSHA, takeOverSHA = shaOf(script.Text), shaOf(script.TakeOver)

func shaOf(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// scriptSubintervals is the most that the script takes.
const scriptSubintervals = 4096

// A dialect says how one connection is asked: in the module's commands, or by the script.
type dialect struct {
	byScript  bool
	isOld     bool         // the module lacks commands that newer ones have
	noReadSHA bool         // the server has no EVALSHA_RO
	clock     func() int64 // this machine's, in Unix ms, where the script may not ask the server for the time
}

// scripts tells whether the script decides a command.
func (d dialect) scripts(c *command) bool { return d.byScript && c.name != "" && !c.needsModule }

// evaluated is how a script begins to be called; whole with its text.
func evaluated(text, sha string, whole, reads bool, keys []string) []string {
	call, body := "EVALSHA", sha
	if whole {
		call, body = "EVAL", text
	}
	if reads {
		call += "_RO"
	}
	return append([]string{call, body, strconv.Itoa(len(keys))}, keys...)
}

// words are a command as it is sent; whole with the script itself.
func (d dialect) words(c *command, whole bool) []string {
	switch {
	case c.takesOver:
		return evaluated(script.TakeOver, takeOverSHA, whole, false, c.keys)
	case !d.scripts(c):
		return c.words()
	}
	sent := evaluated(script.Text, scriptSHA, whole, c.reads && !d.noReadSHA, c.keys)
	at := int64(-1)
	if d.clock != nil && c.name != "INFO" {
		at = d.clock()
	}
	if c.packable && c.packed.window/c.packed.resolution <= scriptSubintervals {
		return append(sent, c.packed.pack(!c.reads, at))
	}
	sent = append(append(sent, c.name), c.arguments[:len(c.arguments)-c.waits]...)
	if at >= 0 {
		sent = append(sent, "AT", number(at))
	}
	return sent
}

// pack makes one argument of an ALLOW, which counts, or a PEEK: the server reads it faster; at < 0: by the server's clock.
func (d *demand) pack(counts bool, at int64) string {
	flags := byte(0)
	for bit, isSet := range []bool{counts, d.partial, d.strict} {
		if isSet {
			flags |= 1 << bit
		}
	}
	b := append(make([]byte, 0, 41), flags)
	for _, n := range []int64{d.limit, d.resolution, d.window / d.resolution, d.cost} {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	if at >= 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(at))
	}
	return string(b)
}

// unpacked is the module's reply where the script has packed it into three doubles.
func unpacked(raw any, c *command) any {
	text, ok := raw.(string)
	if !ok || len(text) != 24 || !c.packable {
		return raw
	}
	double := func(at int) int64 {
		return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(text[at : at+8]))))
	}
	limit := c.packed.limit
	first, second, reset := double(0), double(8), double(16)
	if first > 0 {
		return []any{first, limit, second, int64(0), reset}
	}
	return []any{int64(0), limit, -first, second, reset}
}
