package swlimit

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

const spaces = " \t\r\n"

// Letters are listed in both cases: ignoring case would match those of other alphabets, too.
var (
	rateSeparator = regexp.MustCompile(`[;,]`)
	rateUnitless  = regexp.MustCompile(`^[0-9]+([ \t\r\n]*/([ \t\r\n]*[0-9]+)?)?$`)
	rateOfNginx   = regexp.MustCompile(`^[0-9]+[ \t\r\n]*[rR][ \t\r\n]*/[ \t\r\n]*[sSmM]$`)
	rateText      = regexp.MustCompile(
		`^([0-9]+)[ \t\r\n]*/[ \t\r\n]*([0-9]+)?[ \t\r\n]*([a-zA-Z]+)$`)
	rateUnits = map[string]int64{"ms": 1, "s": 1000, "sec": 1000, "second": 1000, "seconds": 1000, "m": 60_000,
		"min": 60_000, "minute": 60_000, "minutes": 60_000, "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
		"d": 86_400_000, "day": 86_400_000, "days": 86_400_000}
)

// ParseQuota reads a rate: units, "/", and how long, such as "100/minute" or "5/10s". Lengths are ms, s,
// sec, second, m, min, minute, h, hour, d, day, and their plurals.
func ParseQuota(text string) (Quota, error) {
	rates, err := parseRates(text)
	switch {
	case err != nil:
		return Quota{}, err
	case len(rates) > 1:
		return Quota{}, wrong("'%s' has %d rates, and a limiter takes one: use Limits", strings.Trim(text, spaces),
			len(rates))
	}
	return rates[0], nil
}

// parseRates reads one rate or several, separated by ";" or ",".
func parseRates(text string) ([]Quota, error) {
	text = strings.Trim(text, spaces)
	if text == "" {
		return nil, wrong("no rate: write one such as 100/minute")
	}
	parts := rateSeparator.Split(text, -1)
	for i := range parts {
		if parts[i] = strings.Trim(parts[i], spaces); parts[i] == "" {
			return nil, wrong("'%s' has a separator without a rate: write such as 100/hour; 5/second", text)
		}
	}
	var rates []Quota
	for _, part := range parts {
		rate, err := parseRate(part)
		if err != nil {
			return nil, err
		}
		rates = append(rates, rate)
	}
	for i := range rates {
		for j := range rates[:i] {
			if rates[i].Window == rates[j].Window {
				return nil, wrong("'%s' and '%s' have the same window: keep the lower limit", parts[j], parts[i])
			}
		}
	}
	return rates, nil
}

func parseRate(part string) (Quota, error) {
	found := rateText.FindStringSubmatch(part)
	switch {
	case rateUnitless.MatchString(part):
		return Quota{}, wrong("'%s' has no unit: write one such as 100/minute or 5/10s", part)
	case rateOfNginx.MatchString(part):
		return Quota{}, wrong("'%s' is written as for nginx, where 10r/s admits one request per 100 ms: write that as "+
			"1/100ms, or ten at once as 10/second", part)
	case found == nil:
		return Quota{}, wrong("'%s' is no rate: write one such as 100/minute or 5/10s", part)
	}
	name := strings.ToLower(found[3])
	if period := strings.TrimSuffix(name, "s"); period == "month" || period == "year" {
		return Quota{}, wrong("'%s' has no fixed length: write days, such as 100/30 days, or use a budget for a calendar %s",
			part, period)
	}
	unit, limit, many := rateUnits[name], digits(found[1]), int64(1)
	if found[2] != "" {
		many = digits(found[2])
	}
	switch {
	case unit == 0:
		return Quota{}, wrong("'%s' has an unknown unit: write ms, second, minute, hour or day", part)
	case limit > maxExact:
		return Quota{}, wrong("'%s' has a limit above %d: write at most that", part, int64(maxExact))
	case many == 0:
		return Quota{}, wrong("'%s' has no window: write at least 1 ms", part)
	case many > maxWindow/unit:
		return Quota{}, wrong("'%s' has a window above 3650 days: write at most that", part)
	}
	return Quota{Limit: limit, Window: duration(many * unit)}, nil
}

// digits is a number of any length; the largest one in place of those that are larger.
func digits(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// isTagged tells whether a cluster finds a key's slot by a part of it in braces.
func isTagged(name string) bool {
	_, tag, ok := strings.Cut(name, "{")
	return ok && strings.Index(tag, "}") > 0
}
