package swlimit

import (
	"math"
	"strconv"
)

// prefix begins the name of each of the module's commands.
const prefix = "SWLIMIT."

// A command keeps what it asks as fields, and says what takes back what its reply grants to nobody. Words are spelled
// when it is sent.
type command struct {
	name    string // of the module's command, without prefix; or "", and arguments are all words of another command
	keys    []string
	several bool // the number of keys is spelled before them
	// arguments are the words after the keys.
	arguments []string
	reads     bool
	// waits is how many of the last arguments have it wait in the server, which the script leaves out.
	waits int
	// needsModule tells that the script lacks it.
	needsModule bool
	// warms tells that a limit of it rises after idleness.
	warms bool
	// takesOver tells that takeover.lua is asked, whatever the dialect.
	takesOver bool
	// packed is what an ALLOW or a PEEK asks, if the script takes it in one argument; together, what a MALLOW asks.
	packed   demand
	packable bool
	together []rate
	undo     undo
	// ending ends what has an id that nobody else knows, even without a reply. After lasts ms it has ended by itself.
	ending *command
	lasts  int64
}

// words are the command as the module takes it.
func (c *command) words() []string {
	if c.name == "" {
		return c.arguments
	}
	words := make([]string, 0, 2+len(c.keys)+len(c.arguments))
	words = append(words, prefix+c.name)
	if c.several {
		words = append(words, strconv.Itoa(len(c.keys)))
	}
	return append(append(words, c.keys...), c.arguments...)
}

// isNewer tells whether the first release of the module lacks it, or an option of it.
func (c *command) isNewer() bool {
	if c.warms {
		return true
	}
	switch c.name {
	case "", "ALLOW", "PEEK", "RECORD", "REFUND", "INFO", "MALLOW":
		return false
	}
	return true
}

// key is the one whose primary is asked; "" where that does not matter.
func (c *command) key() string {
	if len(c.keys) == 0 {
		return ""
	}
	return c.keys[0]
}

// other is a command that is none of the module's.
func other(key string, words ...string) command {
	return command{keys: []string{key}, arguments: words}
}

func ofKey(name, key string, arguments ...string) command {
	return command{name: name, keys: []string{key}, arguments: arguments}
}

// ends tells whether there is something to end: not after a denial, or an error that the server replied.
func (c *command) ends(reply any, err error) bool {
	if c.ending == nil {
		return false
	}
	if err != nil {
		failed, ok := err.(*unavailable)
		return ok && failed.sent
	}
	list, _ := reply.([]any)
	return len(list) > 0 && list[0] != int64(0)
}

// An undo says which units of a reply to give back.
type undo func(reply any) []counted

// counted is units of a key. Their refund is dated later ms after an instant at which they were not counted yet.
type counted struct {
	key          string
	units, later int64
}

// refunds are the commands that give back what a reply counted. since is an instant of the server's own clock, in Unix
// ms, at which nothing of it was counted yet.
func refunds(all []counted, since func() (int64, error)) ([]command, error) {
	var commands []command
	for _, c := range all {
		if c.units == 0 {
			continue
		}
		at, err := since()
		if err != nil {
			return commands, err
		}
		commands = append(commands, refundCommand(c.key, c.units, "SINCE", number(at+c.later)))
	}
	return commands, nil
}

func ms(n int64) string { return strconv.FormatInt(n, 10) + "ms" }

func number(n int64) string { return strconv.FormatInt(n, 10) }

// appendOptions adds COST, PARTIAL, STRICT, AGE, WARMUP and COLD, in this order, where they say something.
func (d *demand) appendOptions(words []string, age int64) []string {
	if d.cost != 1 {
		words = append(words, "COST", number(d.cost))
	}
	if d.partial {
		words = append(words, "PARTIAL")
	}
	if d.strict {
		words = append(words, "STRICT")
	}
	if age > 0 {
		words = append(words, "AGE", ms(age))
	}
	return d.warmUp.appendWords(words)
}

func rateCommand(name, key string, d *demand, age int64) command {
	words := append(make([]string, 0, 10), number(d.limit), ms(d.window), ms(d.resolution))
	c := ofKey(name, key, d.appendOptions(words, age)...)
	c.warms = d.warms()
	return c
}

func appendBlock(words []string, block int64) []string {
	if block > 0 {
		return append(words, "BLOCK", ms(block))
	}
	return words
}

func allowCommand(key string, d *demand, block int64) command {
	c := rateCommand("ALLOW", key, d, 0)
	c.arguments = appendBlock(c.arguments, block)
	if block == 0 && !c.warms {
		c.packed, c.packable = *d, true
	}
	c.undo = func(reply any) []counted { return countedRate(key, reply) }
	return c
}

func peekCommand(key string, d *demand) command {
	c := rateCommand("PEEK", key, d, 0)
	c.reads, c.packed, c.packable = true, *d, !c.warms
	return c
}

func recordCommand(key string, d *demand, age, block int64) command {
	c := rateCommand("RECORD", key, d, age)
	c.arguments = appendBlock(c.arguments, block)
	return c
}

// acquireCommand is an ALLOW that waits for its turn for up to so many ms.
func acquireCommand(key string, d *demand, wait int64) command {
	words := []string{number(d.limit), ms(d.window), ms(d.resolution), ms(wait)}
	c := ofKey("ACQUIRE", key, d.appendOptions(words, 0)...)
	c.needsModule, c.warms, c.undo = true, d.warms(), func(reply any) []counted { return countedRate(key, reply) }
	return c
}

func refundCommand(key string, units int64, dated ...string) command {
	return ofKey("REFUND", key, append([]string{number(units)}, dated...)...)
}

func blockCommand(key string, duration int64, unlessBlocked bool) command {
	if unlessBlocked {
		return ofKey("BLOCK", key, ms(duration), "NX")
	}
	return ofKey("BLOCK", key, ms(duration))
}

func unblockCommand(key string) command {
	return ofKey("UNBLOCK", key)
}

// A rate is a key, and what is demanded of its window.
type rate struct {
	key string
	demand
}

// appendQuota adds a rate as commands of several have it.
func (d *demand) appendQuota(words []string) []string {
	words = append(words, number(d.limit), ms(d.window), ms(d.resolution), number(d.cost))
	return d.warmUp.appendWords(words)
}

// mallowCommand decides several rates, all or nothing.
func mallowCommand(rates []rate) command {
	keys, words := make([]string, 0, len(rates)), make([]string, 0, 4*len(rates)+1)
	warms := false
	for i := range rates {
		r := &rates[i]
		keys = append(keys, r.key)
		words = r.appendQuota(words)
		warms = warms || r.warms()
	}
	if rates[0].strict {
		words = append(words, "STRICT")
	}
	var together []rate
	if !warms {
		together = rates
	}
	return command{name: "MALLOW", keys: keys, several: true, arguments: words, warms: warms, together: together, undo: func(reply any) []counted {
		var all []counted
		for i, member := range members(reply) {
			if i < len(rates) {
				all = append(all, countedRate(rates[i].key, member)...)
			}
		}
		return all
	}}
}

// budgetCommand asks for units until an instant, in Unix ms. The option is PARTIAL, FORCE or none.
func budgetCommand(key string, limit, until, cost int64, option string) command {
	words := []string{number(limit), number(until)}
	if cost != 1 {
		words = append(words, "COST", number(cost))
	}
	if option != "" {
		words = append(words, option)
	}
	c := ofKey("BUDGET", key, words...)
	if option != "FORCE" {
		c.undo = func(reply any) []counted { return countedBudget(key, reply) }
	}
	return c
}

func infoCommand(key string) command {
	c := ofKey("INFO", key)
	c.reads = true
	return c
}

// holdCommand asks for a hold under an id that was drawn for it, and nobody else knows it. wait < 0 does not wait.
func holdCommand(key string, limit, ttl int64, id string, cost, wait int64) command {
	words := []string{number(limit), ms(ttl), id}
	if cost != 1 {
		words = append(words, "COST", number(cost))
	}
	c, ending := ofKey("HOLD", key, words...), releaseCommand(key, id)
	if wait >= 0 {
		c.arguments, c.waits = append(c.arguments, "WAIT", ms(wait)), 2
	}
	c.ending, c.lasts = &ending, ttl
	return c
}

func releaseCommand(key string, ids ...string) command { return ofKey("RELEASE", key, ids...) }

func renewCommand(key string, ttl int64, ids []string) command {
	return ofKey("RENEW", key, append([]string{ms(ttl)}, ids...)...)
}

func holdersCommand(key string, count int64) command {
	c := ofKey("HOLDERS", key, number(count))
	c.reads = true
	return c
}

// A clause is one of what ADMIT decides: of a RATE a demand, of a HOLD an id and a ttl, else a BUDGET until an instant.
type clause struct {
	key                     string
	rate                    *demand
	id                      string
	limit, ttl, until, cost int64
}

func (c *clause) isHold() bool { return c.id != "" }

func (c *clause) appendWords(words []string) []string {
	switch d := c.rate; {
	case d != nil:
		return d.appendQuota(append(words, "RATE"))
	case c.isHold():
		return append(words, "HOLD", number(c.limit), ms(c.ttl), c.id, number(c.cost))
	}
	return append(words, "BUDGET", number(c.limit), number(c.until), number(c.cost))
}

// admitCommand decides all clauses, all or nothing. A HOLD clause's id was drawn for it, and nobody else knows it.
func admitCommand(clauses []clause, strict bool) command {
	var keys, words, reserved []string
	var holding *clause
	warms := false
	for i := range clauses {
		c := &clauses[i]
		warms = warms || c.rate != nil && c.rate.warms()
		keys, words = append(keys, c.key), c.appendWords(words)
		if c.isHold() && holding == nil {
			holding = c
		} else {
			reserved = append(reserved, c.key)
		}
	}
	if strict {
		words = append(words, "STRICT")
	}
	admit := command{name: "ADMIT", keys: keys, several: true, arguments: words, warms: warms}
	if holding != nil {
		ending := settleCommand(holding.key, holding.id, reserved, make([]int64, len(reserved)))
		admit.ending, admit.lasts = &ending, holding.ttl
		return admit
	}
	admit.undo = func(reply any) []counted {
		var all []counted
		for i, member := range members(reply) {
			switch {
			case i >= len(clauses):
			case clauses[i].rate != nil:
				all = append(all, countedRate(clauses[i].key, member)...)
			default:
				all = append(all, countedBudget(clauses[i].key, member)...)
			}
		}
		return all
	}
	return admit
}

// settleCommand says what was really used of each reserved key.
func settleCommand(key, id string, reserved []string, used []int64) command {
	words := []string{id}
	for _, units := range used {
		words = append(words, number(units))
	}
	keys := append([]string{key}, reserved...)
	return command{name: "SETTLE", keys: keys, several: true, arguments: words}
}

// probeCommand is refused as any write would be, and otherwise denied without a trace.
func probeCommand(key string) command {
	return ofKey("ALLOW", key, "0", "1ms", "1ms")
}

func unlinkCommand(key string) command { return other(key, "UNLINK", key) }

// takeOverCommand hands a key that the script has written to the module.
func takeOverCommand(key string) command { return command{keys: []string{key}, takesOver: true} }

// members are the replies for each key, where all were granted.
func members(reply any) []any {
	list, _ := reply.([]any)
	if len(list) == 0 || list[0] != int64(1) {
		return nil
	}
	return list[1:]
}

func countedRate(key string, raw any) []counted {
	if r, err := replyOf(raw); err == nil {
		return []counted{{key: key, units: r.granted}}
	}
	return nil
}

// countedBudget dates the refund surely before the period's end: the period began with its first unit, perhaps this
// one.
func countedBudget(key string, raw any) []counted {
	if r, err := replyOf(raw); err == nil {
		return []counted{{key, r.granted, r.resetAfter - 1}}
	}
	return nil
}

// lengths are those of replies that are a list of integers.
var lengths = map[string]int{"ALLOW": 5, "PEEK": 5, "RECORD": 5, "ACQUIRE": 5, "BUDGET": 5, "HOLD": 6}

// read is a reply with its integers, which may come as integral doubles or as decimal strings. Anything else is not
// understood.
func (c *command) read(reply any) (any, error) {
	list, isList := reply.([]any)
	length := 0
	switch c.name {
	case "":
		return reply, nil
	case "INFO": // names and values, not all of them numbers
		for i := 1; i < len(list); i += 2 {
			if n, ok := integral(list[i]); ok {
				list[i] = n
			}
		}
		return reply, nil
	case "HOLDERS": // an id, and integers
		for _, each := range list {
			if holder, _ := each.([]any); len(holder) != 5 || !integrate(holder[1:]) {
				return nil, unexpected(reply)
			}
		}
		return reply, nil
	case "REFUND", "RELEASE", "BLOCK", "UNBLOCK":
		if n, ok := integral(reply); ok {
			return n, nil
		}
		return nil, unexpected(reply)
	case "MALLOW", "ADMIT":
		length = 1 + len(c.keys)
	case "RENEW":
		length = len(c.arguments) - 1
	case "SETTLE":
		length = len(list)
	default:
		length = lengths[c.name]
	}
	if !isList || len(list) == 0 || len(list) != length || !integrate(list) {
		return nil, unexpected(reply)
	}
	return reply, nil
}

// integrate has a list hold integers, and lists of them.
func integrate(list []any) bool {
	for i, each := range list {
		if inner, ok := each.([]any); ok {
			if len(inner) < 5 || !integrate(inner) {
				return false
			}
			continue
		}
		n, ok := integral(each)
		if !ok {
			return false
		}
		list[i] = n
	}
	return true
}

// integral is an integer, however a server spells it.
func integral(reply any) (int64, bool) {
	switch value := reply.(type) {
	case int64:
		return value, true
	case float64:
		return int64(value), value == math.Trunc(value) && math.Abs(value) <= maxExact
	case string:
		n, err := parseInt([]byte(value))
		return n, err == nil
	}
	return 0, false
}

// replyOf is a reply of five integers.
func replyOf(raw any) (reply, error) {
	numbers, err := integersOf(raw, 5)
	if err != nil {
		return reply{}, err
	}
	return reply{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]}, nil
}

func integersOf(raw any, n int) (numbers [6]int64, err error) {
	list, _ := raw.([]any)
	if len(list) != n {
		return numbers, unexpected(raw)
	}
	for i, each := range list {
		number, ok := each.(int64)
		if !ok {
			return numbers, unexpected(raw)
		}
		numbers[i] = number
	}
	return numbers, nil
}
