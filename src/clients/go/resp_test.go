package swlimit

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

func TestReplies(t *testing.T) {
	for raw, want := range map[string]any{
		"+OK\r\n":                           "OK",
		"-ERR no\r\n":                       serverError("ERR no"),
		":-7\r\n":                           int64(-7),
		"$3\r\na\r\n\r\n":                   "a\r\n",
		"$-1\r\n":                           nil,
		"=6\r\ntxt:ab\r\n":                  "ab",
		"_\r\n":                             nil,
		"#t\r\n":                            true,
		",1.5\r\n":                          1.5,
		"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n":     []any{int64(1), []any{"x"}},
		"*0\r\n":                            []any{},
		"*-1\r\n":                           nil,
		"%1\r\n+a\r\n:1\r\n":                []any{"a", int64(1)},
		"|1\r\n+a\r\n:1\r\n:2\r\n":          int64(2),
		">2\r\n+invalidate\r\n*1\r\n+k\r\n": pushed{"invalidate", []any{"k"}},
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(raw)), 0)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %#v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"\r\n", "x\r\n", ":\r\n", ":1x\r\n", ":99999999999999999999\r\n", "$3\r\nabcde", "+no\n",
		"$99999999999\r\n", "*99999999\r\n", strings.Repeat("*1\r\n", 100), strings.Repeat("|0\r\n", 100) + ":1\r\n"} {
		if got, err := readReply(bufio.NewReader(strings.NewReader(raw)), 0); err == nil {
			t.Errorf("%q: %#v", raw, got)
		}
	}
}

// Whatever a server sends is a reply, an error or the end; it never takes memory that it has not sent.
func FuzzReplies(f *testing.F) {
	for _, raw := range []string{":1\r\n", "*2\r\n$1\r\na\r\n_\r\n", ">2\r\n+invalidate\r\n_\r\n", "%1\r\n+a\r\n#t\r\n"} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bufio.NewReader(bytes.NewReader(raw))
		for {
			reply, err := readReply(r, 0)
			if err != nil {
				if err == io.EOF && r.Buffered() > 0 {
					t.Error("not read to the end")
				}
				return
			}
			if text, ok := reply.(serverError); ok {
				_ = reasonOfReply(string(text))
				if err := understood(text); err == nil || errors.Is(err, ErrArgument) {
					t.Error(err)
				}
			}
			_, _ = replyOf(reply)
			_, _ = instantOf(reply)
			_ = members(reply)
		}
	})
}
