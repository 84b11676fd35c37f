package grammar

import (
	"maps"
	"slices"
	"strings"
)

// Patterns of formats. Each of their texts is of the format, but not all that
// are (29 February, quoted mailboxes): a model has no need of the others.
const (
	datePattern = `[0-9]{4}-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))|(02-(0[1-9]|1[0-9]|2[0-8])))`
	timePattern = `([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])`
	labelText   = `[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
	hostPattern = labelText + `(\.` + labelText + `){0,3}`
	octet       = `(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])`
	group       = `[0-9A-Fa-f]{1,4}`
	pathChar    = `([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})`
)

// formats are those that are understood, by name.
var formats = map[string]string{
	"date":      datePattern,
	"time":      timePattern,
	"date-time": datePattern + `T` + timePattern,
	"duration":  `P([0-9]{1,9}W|([0-9]{1,9}Y)?([0-9]{1,9}M)?[0-9]{1,9}D(T[0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?)?|T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S))`,
	"uuid":      `[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}`,
	"email":     `[A-Za-z0-9_%+-]{1,16}(\.[A-Za-z0-9_%+-]{1,15}){0,3}@` + labelText + `(\.` + labelText + `){1,2}`,
	"hostname":  hostPattern,
	"ipv4":      octet + `(\.` + octet + `){3}`,
	"ipv6":      ipv6Pattern(),
	"uri":       `[a-z][a-z0-9+.-]{0,15}://` + hostPattern + `(:[0-9]{1,5})?(/` + pathChar + `*)*(\?(` + pathChar + `|[/?])*)?(#(` + pathChar + `|[/?])*)?`,
}

// ipv6Pattern is eight groups, or fewer with one gap.
func ipv6Pattern() string {
	more := func(n string) string { return `(` + group + `(:` + group + `){0,` + n + `})` }
	all := []string{group + `(:` + group + `){7}`, `::`, `::` + more("6")}
	for before := 1; before <= 7; before++ {
		head := group + strings.Repeat(`:`+group, before-1) + `::`
		if left := 7 - before; left > 0 {
			head += more(string(rune('0'+left-1))) + `?`
		}
		all = append(all, head)
	}
	return `(` + strings.Join(all, `|`) + `)`
}

// format is strings of a format.
func (r *schemaReader) format(d *document, name string) (expr, error) {
	pattern, ok := formats[name]
	if !ok {
		return nil, wrong(d, "format", "it is %s: supported are %s", quote(name), strings.Join(slices.Sorted(maps.Keys(formats)), ", "))
	}
	e, err := regex(pattern, false, r.b.inString)
	if err != nil {
		return nil, wrong(d, "format", "%v", err)
	}
	return concat(literal(`"`), e, literal(`"`)), nil
}
