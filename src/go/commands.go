package swlimit

import (
	"strconv"
	"strings"
)

// A command is the words for a server, and what takes back what its reply grants to nobody.
type command struct {
	words []string
	key   string // the one whose primary is asked
	reads bool
	undo  undo
	// ending ends what has an id that nobody else knows, even without a reply. After lasts ms it has ended by itself.
	ending []string
	lasts  int64
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

// counted is units of a key. A budget's can be given back for period ms only. Of a window that is 0,
// and its refund is dated.
type counted struct {
	key           string
	units, period int64
}

// refunds are the commands that give back what a reply counted, when passed ms have gone since the command was sent.
// since is an instant of the server's own clock, in Unix ms, at which nothing of it was counted yet.
func refunds(all []counted, passed int64, since func() (int64, error)) ([]command, error) {
	var commands []command
	for _, c := range all {
		switch {
		case c.units == 0 || (c.period != 0 && passed >= c.period):
		case c.period != 0:
			commands = append(commands, refundCommand(c.key, c.units))
		default:
			at, err := since()
			if err != nil {
				return commands, err
			}
			commands = append(commands, refundCommand(c.key, c.units, "SINCE", strconv.FormatInt(at, 10)))
		}
	}
	return commands, nil
}

func ms(n int64) string { return strconv.FormatInt(n, 10) + "ms" }

func number(n int64) string { return strconv.FormatInt(n, 10) }

// appendOptions adds COST, PARTIAL and STRICT, in this order, where they say something.
func (d *demand) appendOptions(words []string) []string {
	if d.cost != 1 {
		words = append(words, "COST", number(d.cost))
	}
	if d.partial {
		words = append(words, "PARTIAL")
	}
	if d.strict {
		words = append(words, "STRICT")
	}
	return words
}

func rateCommand(name, key string, d *demand) command {
	words := make([]string, 5, 12)
	words[0], words[1], words[2], words[3], words[4] = name, key, number(d.limit), ms(d.window), ms(d.resolution)
	return command{words: d.appendOptions(words), key: key}
}

func appendBlock(words []string, block int64) []string {
	if block > 0 {
		return append(words, "BLOCK", ms(block))
	}
	return words
}

func allowCommand(key string, d *demand, block int64) command {
	c := rateCommand("SWLIMIT.ALLOW", key, d)
	c.words = appendBlock(c.words, block)
	c.undo = func(reply any) []counted { return countedRate(key, reply) }
	return c
}

func peekCommand(key string, d *demand) command {
	c := rateCommand("SWLIMIT.PEEK", key, d)
	c.reads = true
	return c
}

func recordCommand(key string, d *demand, age, block int64) command {
	c := rateCommand("SWLIMIT.RECORD", key, d)
	if age > 0 {
		c.words = append(c.words, "AGE", ms(age))
	}
	c.words = appendBlock(c.words, block)
	return c
}

// acquireCommand is an ALLOW that waits for its turn for up to so many ms.
func acquireCommand(key string, d *demand, wait int64) command {
	words := []string{"SWLIMIT.ACQUIRE", key, number(d.limit), ms(d.window), ms(d.resolution), ms(wait)}
	return command{words: d.appendOptions(words), key: key,
		undo: func(reply any) []counted { return countedRate(key, reply) }}
}

func refundCommand(key string, units int64, dated ...string) command {
	return command{words: append([]string{"SWLIMIT.REFUND", key, number(units)}, dated...), key: key}
}

func blockCommand(key string, duration int64, unlessBlocked bool) command {
	words := []string{"SWLIMIT.BLOCK", key, ms(duration)}
	if unlessBlocked {
		words = append(words, "NX")
	}
	return command{words: words, key: key}
}

func unblockCommand(key string) command {
	return command{words: []string{"SWLIMIT.UNBLOCK", key}, key: key}
}

// A rate is a key, and what is demanded of its window.
type rate struct {
	key string
	demand
}

// mallowCommand decides several rates, all or nothing.
func mallowCommand(rates []rate) command {
	words := []string{"SWLIMIT.MALLOW", strconv.Itoa(len(rates))}
	for i := range rates {
		words = append(words, rates[i].key)
	}
	for i := range rates {
		r := &rates[i]
		words = append(words, number(r.limit), ms(r.window), ms(r.resolution), number(r.cost))
	}
	if rates[0].strict {
		words = append(words, "STRICT")
	}
	return command{words: words, key: rates[0].key, undo: func(reply any) []counted {
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
	words := []string{"SWLIMIT.BUDGET", key, number(limit), number(until)}
	if cost != 1 {
		words = append(words, "COST", number(cost))
	}
	if option != "" {
		words = append(words, option)
	}
	c := command{words: words, key: key}
	if option != "FORCE" {
		c.undo = func(reply any) []counted { return countedBudget(key, reply) }
	}
	return c
}

func infoCommand(key string) command {
	return command{words: []string{"SWLIMIT.INFO", key}, key: key, reads: true}
}

// holdCommand asks for a hold under an id that was drawn for it, and nobody else knows it. wait < 0 does not wait.
func holdCommand(key string, limit, ttl int64, id string, cost, wait int64) command {
	words := []string{"SWLIMIT.HOLD", key, number(limit), ms(ttl), id}
	if cost != 1 {
		words = append(words, "COST", number(cost))
	}
	if wait >= 0 {
		words = append(words, "WAIT", ms(wait))
	}
	return command{words: words, key: key, ending: releaseCommand(key, id).words, lasts: ttl}
}

func releaseCommand(key string, ids ...string) command {
	return command{words: append([]string{"SWLIMIT.RELEASE", key}, ids...), key: key}
}

func renewCommand(key string, ttl int64, ids []string) command {
	return command{words: append([]string{"SWLIMIT.RENEW", key, ms(ttl)}, ids...), key: key}
}

func holdersCommand(key string, count int64) command {
	return command{words: []string{"SWLIMIT.HOLDERS", key, number(count)}, key: key, reads: true}
}

// A clause is one of what ADMIT decides.
type clause struct {
	key   string
	words []string // RATE …, HOLD … or BUDGET …
}

func rateClause(d *demand) []string {
	return []string{"RATE", number(d.limit), ms(d.window), ms(d.resolution), number(d.cost)}
}

func budgetClause(limit, until, cost int64) []string {
	return []string{"BUDGET", number(limit), number(until), number(cost)}
}

func holdClause(limit, ttl int64, id string, cost int64) []string {
	return []string{"HOLD", number(limit), ms(ttl), id, number(cost)}
}

// admitCommand decides all clauses, all or nothing. A HOLD clause's id was drawn for it, and nobody else knows it.
func admitCommand(clauses []clause, strict bool) command {
	words := []string{"SWLIMIT.ADMIT", strconv.Itoa(len(clauses))}
	for _, c := range clauses {
		words = append(words, c.key)
	}
	var holding *clause
	var reserved []string
	for i, c := range clauses {
		words = append(words, c.words...)
		if c.words[0] == "HOLD" && holding == nil {
			holding = &clauses[i]
		} else {
			reserved = append(reserved, c.key)
		}
	}
	if strict {
		words = append(words, "STRICT")
	}
	command := command{words: words, key: clauses[0].key}
	if holding != nil {
		command.ending = settleCommand(holding.key, holding.words[3], reserved, make([]int64, len(reserved))).words
		command.lasts, _ = strconv.ParseInt(strings.TrimSuffix(holding.words[2], "ms"), 10, 64)
		return command
	}
	command.undo = func(reply any) []counted {
		var all []counted
		for i, member := range members(reply) {
			switch {
			case i >= len(clauses):
			case clauses[i].words[0] == "RATE":
				all = append(all, countedRate(clauses[i].key, member)...)
			case clauses[i].words[0] == "BUDGET":
				all = append(all, countedBudget(clauses[i].key, member)...)
			}
		}
		return all
	}
	return command
}

// settleCommand says what was really used of each reserved key.
func settleCommand(key, id string, reserved []string, used []int64) command {
	words := append([]string{"SWLIMIT.SETTLE", strconv.Itoa(1 + len(reserved)), key}, reserved...)
	words = append(words, id)
	for _, units := range used {
		words = append(words, number(units))
	}
	return command{words: words, key: key}
}

// probeCommand is refused as any write would be, and otherwise denied without a trace.
func probeCommand(key string) command {
	return command{words: []string{"SWLIMIT.ALLOW", key, "0", "1ms", "1ms"}, key: key}
}

func unlinkCommand(key string) command { return command{words: []string{"UNLINK", key}, key: key} }

// keyWords are the command's keys, as it names them.
func (c *command) keyWords() []string {
	switch c.words[0] {
	case "SWLIMIT.MALLOW", "SWLIMIT.ADMIT", "SWLIMIT.SETTLE":
		n, _ := strconv.Atoi(c.words[1])
		return c.words[2 : 2+n]
	case "TIME":
		return nil
	}
	return c.words[1:2]
}

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

func countedBudget(key string, raw any) []counted {
	if r, err := replyOf(raw); err == nil && r.resetAfter > 0 {
		return []counted{{key, r.granted, r.resetAfter}}
	}
	return nil
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
