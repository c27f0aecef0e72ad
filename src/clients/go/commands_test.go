package swlimit

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// text is a word of commands.json: text, or bytes as {"hex": "…"}.
type text string

func (t *text) UnmarshalJSON(raw []byte) error {
	var plain string
	if json.Unmarshal(raw, &plain) == nil {
		*t = text(plain)
		return nil
	}
	var other struct{ Hex string }
	if err := json.Unmarshal(raw, &other); err != nil {
		return err
	}
	decoded, err := hex.DecodeString(other.Hex)
	*t = text(decoded)
	return err
}

func words(all []text) []string {
	list := []string{}
	for _, each := range all {
		list = append(list, string(each))
	}
	return list
}

type fields struct {
	Key, Kind                       text
	ID                              text
	Limit, Window, Resolution, Cost int64
	TTL, Until, Units, Duration     int64
	Timeout, Block, Count           int64
	WarmUp                          int64 `json:"warm_up"`
	Cold                            int64
	Wait, Age, Since                *int64
	Partial, Strict, Force, NX      bool
	OwnID                           bool `json:"own_id"`
	IDs                             []text
	Members, Clauses                []fields
	Reserved                        []struct {
		Key  text
		Used int64
	}
}

func (f *fields) demand() *demand {
	return &demand{quota{f.Limit, f.Window, f.Resolution, f.Strict, warmUp{f.WarmUp, cmp.Or(f.Cold, usualCold)}}, f.Cost, f.Partial}
}

// asked is the command that the fields describe.
func asked(name string, f *fields) (command, bool) {
	key := string(f.Key)
	var dated []string
	switch {
	case f.Age != nil && name == "REFUND":
		dated = []string{"AGE", ms(*f.Age)}
	case f.Since != nil:
		dated = []string{"SINCE", number(*f.Since)}
	}
	wait, age := int64(-1), int64(0)
	if f.Wait != nil {
		wait = *f.Wait
	}
	if f.Age != nil {
		age = *f.Age
	}
	option := ""
	if f.Partial {
		option = "PARTIAL"
	}
	if f.Force {
		option = "FORCE"
	}
	switch name {
	case "ALLOW":
		return allowCommand(key, f.demand(), f.Block), true
	case "PEEK":
		return peekCommand(key, f.demand()), true
	case "RECORD":
		return recordCommand(key, f.demand(), age, f.Block), true
	case "ACQUIRE":
		return acquireCommand(key, f.demand(), f.Timeout), true
	case "REFUND":
		return refundCommand(key, f.Units, dated...), true
	case "BLOCK":
		return blockCommand(key, f.Duration, f.NX), true
	case "UNBLOCK":
		return unblockCommand(key), true
	case "INFO":
		return infoCommand(key), true
	case "BUDGET":
		return budgetCommand(key, f.Limit, f.Until, f.Cost, option), true
	case "HOLD":
		return holdCommand(key, f.Limit, f.TTL, string(f.ID), f.Cost, wait), true
	case "RELEASE":
		return releaseCommand(key, words(f.IDs)...), true
	case "RENEW":
		return renewCommand(key, f.TTL, words(f.IDs)), true
	case "HOLDERS":
		return holdersCommand(key, f.Count), true
	case "SETTLE":
		var reserved []string
		var used []int64
		for _, each := range f.Reserved {
			reserved, used = append(reserved, string(each.Key)), append(used, each.Used)
		}
		return settleCommand(key, string(f.ID), reserved, used), true
	case "MALLOW":
		var rates []rate
		for _, m := range f.Members {
			d := m.demand()
			d.strict = f.Strict
			rates = append(rates, rate{string(m.Key), *d})
		}
		return mallowCommand(rates), true
	case "ADMIT":
		var clauses []clause
		for _, c := range f.Clauses {
			clauses = append(clauses, c.clause())
		}
		return admitCommand(clauses, f.Strict), true
	}
	return command{}, false
}

func (f *fields) clause() clause {
	asked := clause{key: string(f.Key), id: string(f.ID), limit: f.Limit, ttl: f.TTL, until: f.Until, cost: f.Cost}
	if f.Kind == "RATE" {
		asked.rate = f.demand()
	}
	return asked
}

// ownIDs tells whether all ids were drawn for this command: those of others this client never asks with.
func (f *fields) ownIDs(name string) bool {
	if name == "HOLD" {
		return f.OwnID
	}
	for _, c := range f.Clauses {
		if c.Kind == "HOLD" && !c.OwnID {
			return false
		}
	}
	return true
}

type scripting struct {
	Packed string
	Words  []text
	Dated  json.RawMessage
}

// dated is what the script gets by the caller's clock, where that is said.
func (s *scripting) dated() []string {
	var packed string
	if json.Unmarshal(s.Dated, &packed) == nil && packed != "" {
		bytes, _ := hex.DecodeString(packed)
		return []string{string(bytes)}
	}
	var list []text
	if json.Unmarshal(s.Dated, &list) == nil && list != nil {
		return words(list)
	}
	return nil
}

func TestCommands(t *testing.T) {
	var cases []struct {
		Command     string
		Fields      fields
		Words, Keys []text
		Since       string
		Reads       bool
		Script      *scripting
		Undo        []struct {
			Reply     json.RawMessage
			Since     int64
			Commands  [][]text
			RepeatFor int64 `json:"repeat_for"`
		}
	}
	vectors(t, "commands", &cases)
	known := map[string]int{}
	for i, c := range cases {
		cmd, ok := asked(c.Command, &c.Fields)
		if !ok {
			continue // TOP, which is for people
		}
		known[c.Command]++
		name := fmt.Sprintf("%d: %s", i, c.Command)
		if !reflect.DeepEqual(cmd.words(), words(c.Words)) {
			t.Errorf("%s: %q instead of %q", name, cmd.words(), c.Words)
		}
		if keys := append([]string{}, cmd.keys...); !reflect.DeepEqual(keys, words(c.Keys)) {
			t.Errorf("%s: the keys are %q instead of %q", name, keys, c.Keys)
		}
		if cmd.reads != c.Reads {
			t.Errorf("%s: reads: %v", name, cmd.reads)
		}
		if cmd.isNewer() != (c.Since != "0.1.0") {
			t.Errorf("%s: newer than the first release: %v", name, cmd.isNewer())
		}
		sent := dialect{byScript: true}.words(&cmd, false)
		if c.Script == nil {
			if !reflect.DeepEqual(sent, cmd.words()) {
				t.Errorf("%s: the script does not have it: %q", name, sent)
			}
		} else {
			wanted := words(c.Script.Words)
			if c.Script.Packed != "" {
				packed, _ := hex.DecodeString(c.Script.Packed)
				wanted = []string{string(packed)}
			}
			call := "EVALSHA"
			if c.Reads {
				call = "EVALSHA_RO"
			}
			wanted = append(append([]string{call, scriptSHA, number(int64(len(c.Keys)))}, words(c.Keys)...), wanted...)
			if !reflect.DeepEqual(sent, wanted) {
				t.Errorf("%s: the script is called with %q instead of %q", name, sent, wanted)
			}
			dated := dialect{byScript: true, clock: func() int64 { return 1760054400000 }}.words(&cmd, false)
			if at := c.Script.dated(); at != nil && !reflect.DeepEqual(dated[3+len(c.Keys):], at) {
				t.Errorf("%s: the script is called with %q instead of %q", name, dated, at)
			}
		}
		if !c.Fields.ownIDs(c.Command) {
			continue
		}
		for j, u := range c.Undo {
			reply, err := replyFrom(t, u.Reply)
			got := [][]text{}
			if cmd.undo != nil && err == nil {
				all, _ := refunds(cmd.undo(reply), func() (int64, error) { return u.Since, nil })
				for _, refund := range all {
					got = append(got, texts(refund.words()))
				}
			}
			if cmd.ends(reply, err) {
				got = append(got, texts(cmd.ending.words()))
				if cmd.lasts != u.RepeatFor {
					t.Errorf("%s: undo %d is repeated for %d ms", name, j, cmd.lasts)
				}
			}
			if !reflect.DeepEqual(got, u.Commands) {
				t.Errorf("%s: undo %d is %q instead of %q", name, j, got, u.Commands)
			}
		}
	}
	if len(known) != 16 {
		t.Errorf("only %v", known)
	}
}

func texts(words []string) []text {
	var all []text
	for _, each := range words {
		all = append(all, text(each))
	}
	return all
}

// replyFrom is a reply as the protocol gives it; without one, the error that a lost connection is.
func replyFrom(t *testing.T, raw json.RawMessage) (any, error) {
	t.Helper()
	if string(raw) == "null" {
		return nil, &unavailable{reason: "no reply", sent: true}
	}
	if strings.HasPrefix(string(raw), "{") {
		return nil, serverError("OOM")
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var reply any
	if err := decoder.Decode(&reply); err != nil {
		t.Fatal(err)
	}
	return integers(reply), nil
}

func integers(reply any) any {
	switch reply := reply.(type) {
	case json.Number:
		n, _ := reply.Int64()
		return n
	case []any:
		for i := range reply {
			reply[i] = integers(reply[i])
		}
	}
	return reply
}
