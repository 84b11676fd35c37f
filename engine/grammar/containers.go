package grammar

import (
	"slices"
	"unicode/utf8"
)

// property is a member of an object, in the order in which they come.
type property struct {
	pair     expr // name, colon and value
	required bool
}

// object is objects.
func (r *schemaReader) object(d *document) (expr, error) {
	properties, err := r.properties(d)
	if err != nil {
		return nil, err
	}
	least, most, err := counts(d, "minProperties", "maxProperties")
	if err != nil {
		return nil, err
	}
	extra, names := d.members["additionalProperties"], d.members["propertyNames"]
	switch {
	case len(properties) == 0:
		return r.dictionary(d, extra, names, least, most)
	case names != nil:
		return nil, wrong(d, "propertyNames", "beside properties or required the keyword \"propertyNames\" is not supported: leave it out")
	case least > 0 || most >= 0:
		return nil, wrong(d, "", "beside properties or required the keywords \"minProperties\" and \"maxProperties\" are not supported: leave them out")
	}
	var pair expr
	if extra != nil && extra.kind != 'f' {
		value, err := r.schema(extra)
		if err != nil {
			return nil, err
		}
		pair = concat(r.b.otherName(namesOf(d)), r.b.colon(), value)
	}
	return r.b.members(properties, pair), nil
}

// namesOf are the names of an object's properties, those that are only required too.
func namesOf(d *document) []string {
	var all []string
	if p := d.members["properties"]; p != nil {
		all = slices.Clone(p.keys)
	}
	if q := d.members["required"]; q != nil {
		more, _ := q.texts()
		all = append(all, more...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// properties are those that a schema names; one that is only required has the
// schema of additional ones.
func (r *schemaReader) properties(d *document) ([]property, error) {
	var required []string
	if q := d.members["required"]; q != nil {
		var ok bool
		if required, ok = q.texts(); !ok {
			return nil, wrong(d, "required", "it is %s: allowed is a list of different strings", shown(q))
		}
	}
	must := map[string]bool{}
	for _, name := range required {
		must[name] = true
	}
	named := d.members["properties"]
	if named == nil {
		named = &document{kind: '{'}
	}
	if named.kind != '{' {
		return nil, wrong(d, "properties", "it is %s: allowed is an object of schemas", shown(named))
	}
	var all []property
	add := func(name string, schema *document) error {
		value, err := r.schema(schema)
		all = append(all, property{concat(literal(quoted(name)), r.b.colon(), value), must[name]})
		return err
	}
	for _, name := range named.keys {
		if err := add(name, named.members[name]); err != nil {
			return nil, err
		}
	}
	extra := d.members["additionalProperties"]
	if extra == nil {
		extra = &document{kind: 't'}
	}
	for _, name := range required {
		if named.members[name] != nil {
			continue
		}
		if err := add(name, extra); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// dictionary is objects whose properties have no names of their own.
func (r *schemaReader) dictionary(d, extra, names *document, least, most int) (expr, error) {
	value, key := r.b.value(), r.b.str()
	var err error
	if extra != nil {
		if value, err = r.schema(extra); err != nil {
			return nil, err
		}
	}
	if names != nil && names.kind != 't' {
		typed := &document{parent: d, name: "propertyNames", kind: '{', keys: []string{"type"}, members: map[string]*document{"type": {kind: '"', text: "string"}}}
		if key, err = r.schema(allOf(names, typed)); err != nil {
			return nil, err
		}
	}
	if most >= 0 && most < least {
		return nothing, nil
	}
	return r.b.list("{", "}", concat(key, r.b.colon(), value), least, most), nil
}

// members is an object with properties in their order, and then any number of
// extra pairs, if that is not nil.
func (b *builder) members(all []property, extra expr) expr {
	return func(b *builder, from, to int32) {
		open, shut := b.node(), b.node()
		concat(literal("{"), b.space())(b, from, open)
		literal("}")(b, shut, to)
		// want[i]: a pair of i or a later property comes next; have[i]: one before i was there.
		want, have := b.node(), b.node()
		allOptional := true
		b.free(open, want)
		for _, p := range all {
			if b.full {
				return
			}
			nextWant, nextHave := b.node(), b.node()
			p.pair(b, want, nextHave)
			b.comma()(b, have, want)
			if !p.required {
				b.free(want, nextWant)
				b.free(have, nextHave)
			}
			allOptional = allOptional && !p.required
			want, have = nextWant, nextHave
		}
		if extra != nil {
			extra(b, want, have)
			b.comma()(b, have, want)
		}
		b.space()(b, have, shut)
		if allOptional {
			b.free(open, shut)
		}
	}
}

// otherName is a string that is none of the names, in any spelling: it has no escapes.
func (b *builder) otherName(names []string) expr {
	return func(b *builder, from, to int32) {
		start, other := b.node(), b.node()
		literal(`"`)(b, from, start)
		b.codePoint(unescaped)(b, other, other)
		literal(`"`)(b, other, to)
		b.differ(names, 0, start, other, to)
	}
}

// differ adds what goes on from at, where sorted names are alike up to byte n,
// and is none of them.
func (b *builder) differ(names []string, n int, at, other, to int32) {
	if b.full {
		return
	}
	if len(names) > 0 && len(names[0]) == n {
		names = names[1:]
	} else {
		literal(`"`)(b, at, to)
	}
	left := unescaped
	for len(names) > 0 {
		c, size := utf8.DecodeRuneInString(names[0][n:])
		same := 1
		for same < len(names) && len(names[same]) >= n+size && names[same][n:n+size] == names[0][n:n+size] {
			same++
		}
		if here := []span{{c, c}}; len(except(here, unescaped)) == 0 {
			next := b.node()
			b.codePoint(here)(b, at, next)
			b.differ(names[:same], n+size, next, other, to)
			left = except(left, here)
		}
		names = names[same:]
	}
	b.codePoint(left)(b, at, other)
}

// array is arrays.
func (r *schemaReader) array(d *document) (expr, error) {
	least, most, err := counts(d, "minItems", "maxItems")
	if err != nil {
		return nil, err
	}
	if u := d.members["uniqueItems"]; u != nil && u.kind != 'f' {
		return nil, wrong(d, "uniqueItems", "it is %s: that is not supported: allowed is false", shown(u))
	}
	item := r.b.value()
	if items := d.members["items"]; items != nil {
		if items.kind == '[' {
			return nil, wrong(d, "items", "a list is not supported: say prefixItems")
		}
		if item, err = r.schema(items); err != nil {
			return nil, err
		}
	}
	if most >= 0 && most < least {
		return nothing, nil
	}
	prefix := d.members["prefixItems"]
	if prefix == nil {
		return r.b.list("[", "]", item, least, most), nil
	}
	if prefix.kind != '[' {
		return nil, wrong(d, "prefixItems", "it is %s: allowed is a list of schemas", shown(prefix))
	}
	var first []expr
	for _, p := range prefix.items {
		e, err := r.schema(p)
		if err != nil {
			return nil, err
		}
		first = append(first, e)
	}
	return r.b.tuple(first, item, least, most), nil
}

// tuple is an array that begins with the items of first, and has more of item,
// between least and most in all (any number, if that is negative).
func (b *builder) tuple(first []expr, item expr, least, most int) expr {
	if most >= 0 && most < len(first) {
		first = first[:most]
	}
	return func(b *builder, from, to int32) {
		open, shut := b.node(), b.node()
		concat(literal("["), b.space())(b, from, open)
		literal("]")(b, shut, to)
		if least == 0 {
			b.free(open, shut)
		}
		at := open // after i items
		for i := 0; ; i++ {
			if i > 0 && i >= least {
				b.space()(b, at, shut)
			}
			if b.full || i == most || most < 0 && i >= max(len(first), least) {
				break
			}
			next := b.node()
			e := item
			if i < len(first) {
				e = first[i]
			}
			if i > 0 {
				e = concat(b.comma(), e)
			}
			e(b, at, next)
			at = next
		}
		if most < 0 && at != open {
			b.tail(concat(b.comma(), item), at, shut)
		} else if most < 0 {
			some := b.node()
			item(b, at, some)
			b.tail(concat(b.comma(), item), some, shut)
		}
	}
}

// tail is any number of e, and then space.
func (b *builder) tail(e expr, from, to int32) {
	loop := b.node()
	b.free(from, loop)
	e(b, loop, loop)
	b.space()(b, loop, to)
}
