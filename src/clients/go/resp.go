package swlimit

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Replies longer than these are taken for a broken stream.
const (
	longestText = 64 << 20
	mostMembers = 1 << 20
	deepest     = 16
)

// pushed is what the server says without being asked.
type pushed []any

// appendWords adds a command to what is written.
func appendWords(b []byte, words []string) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(words)), 10)
	b = append(b, '\r', '\n')
	for _, word := range words {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(word)), 10)
		b = append(b, '\r', '\n')
		b = append(b, word...)
		b = append(b, '\r', '\n')
	}
	return b
}

// readReply reads one reply of RESP2 or RESP3: nil, int64, float64, string, []any, serverError or pushed. A map is a
// list of its names and values.
func readReply(r *bufio.Reader, depth int) (any, error) {
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	if depth > deepest || len(line) == 0 {
		return nil, errBroken
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', '(':
		return string(rest), nil
	case '-':
		return serverError(rest), nil
	case ':':
		return parseInt(rest)
	case '_':
		return nil, nil
	case '#':
		return string(rest) == "t", nil
	case ',':
		return strconv.ParseFloat(string(rest), 64)
	case '$', '=', '!':
		reply, err := readText(r, rest)
		text, isText := reply.(string)
		switch {
		case isText && kind == '!':
			return serverError(text), err
		case kind == '=' && len(text) >= len("txt:"):
			return text[len("txt:"):], err
		}
		return reply, err
	case '*', '~', '>', '%', '|':
		list, err := readList(r, rest, kind, depth)
		switch {
		case err != nil:
			return nil, err
		case kind == '|': // attributes of the reply that follows
			return readReply(r, depth+1)
		case kind == '>':
			return pushed(list), nil
		case list == nil:
			return nil, nil
		}
		return list, nil
	}
	return nil, errBroken
}

func readList(r *bufio.Reader, length []byte, kind byte, depth int) ([]any, error) {
	n, err := parseInt(length)
	if err != nil || n > mostMembers {
		return nil, errBroken
	}
	if n < 0 {
		return nil, nil
	}
	if kind == '%' || kind == '|' {
		n *= 2
	}
	list := make([]any, 0, min(n, 1024))
	for range n {
		member, err := readReply(r, depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, member)
	}
	return list, nil
}

func readText(r *bufio.Reader, length []byte) (any, error) {
	n, err := parseInt(length)
	if err != nil || n > longestText {
		return nil, errBroken
	}
	if n < 0 {
		return nil, nil
	}
	text := make([]byte, 0, min(n+2, 1<<16))
	for int64(len(text)) < n+2 {
		start := len(text)
		text = append(text, make([]byte, min(n+2-int64(start), 1<<16))...)
		if _, err := io.ReadFull(r, text[start:]); err != nil {
			return nil, err
		}
	}
	if text[n] != '\r' || text[n+1] != '\n' {
		return nil, errBroken
	}
	return string(text[:n]), nil
}

func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if err == bufio.ErrBufferFull {
			return nil, errBroken
		}
		return nil, err
	}
	if len(line) < 2 || line[len(line)-2] != '\r' {
		return nil, errBroken
	}
	return line[:len(line)-2], nil
}

// parseInt reads digits without making a string of them.
func parseInt(digits []byte) (int64, error) {
	negative := len(digits) > 0 && digits[0] == '-'
	if negative {
		digits = digits[1:]
	}
	if len(digits) == 0 {
		return 0, errBroken
	}
	n := int64(0)
	for _, digit := range digits {
		if digit < '0' || digit > '9' || n > (math.MaxInt64-9)/10 {
			return 0, errBroken
		}
		n = 10*n + int64(digit-'0')
	}
	if negative {
		n = -n
	}
	return n, nil
}

var errBroken = fmt.Errorf("the server does not speak the protocol of Redis")

// unexpected is the failure of a reply that is not understood. What it may have granted is undone where that is
// possible.
func unexpected(reply any) error {
	text := "the reply is not understood: " + quoted(fmt.Sprint(reply))
	return &unavailable{text: text, reason: reasonBadReply, sent: true}
}
