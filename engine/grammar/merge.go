package grammar

import (
	"maps"
	"slices"
)

// without is a schema without some keywords.
func without(d *document, names ...string) *document {
	out := &document{parent: d.parent, name: d.name, kind: '{', members: maps.Clone(d.members)}
	for _, key := range d.keys {
		if slices.Contains(names, key) {
			delete(out.members, key)
		} else {
			out.keys = append(out.keys, key)
		}
	}
	return out
}

// flatten is a schema without $ref and allOf: what these say is merged into it.
// It is false where no value can satisfy it.
func (r *schemaReader) flatten(d *document, depth int) (*document, error) {
	if d.kind == 't' || d.kind == 'f' {
		return d, nil
	}
	if depth > maxRefs {
		return nil, wrong(d, "", "$ref and allOf lead to one another more than %d times: that is no text, or refers to itself", maxRefs)
	}
	if err := r.check(d); err != nil {
		return nil, err
	}
	var parts []*document
	if d.members["$ref"] != nil {
		target, err := r.target(d)
		if err != nil {
			return nil, err
		}
		parts = append(parts, target)
	}
	if all := d.members["allOf"]; all != nil {
		if all.kind != '[' || len(all.items) == 0 {
			return nil, wrong(d, "allOf", "it is %s: allowed is a list of schemas", shown(all))
		}
		parts = append(parts, all.items...)
	}
	if len(parts) == 0 {
		return d, nil
	}
	out := without(d, "$ref", "allOf")
	for _, part := range parts {
		flat, err := r.flatten(part, depth+1)
		if err != nil || flat.kind == 'f' {
			return flat, err
		}
		if flat.kind == 't' {
			continue
		}
		if out, err = r.merge(out, flat); err != nil || out.kind == 'f' {
			return out, err
		}
	}
	return out, nil
}

// merge is a schema for what satisfies both: false if they have no type in
// common. Neither has $ref or allOf, what it gives may have them further down.
func (r *schemaReader) merge(a, b *document) (*document, error) {
	if r.work += len(a.keys) + len(b.keys); r.work > maxSchemaWork {
		return nil, errTooLarge
	}
	if err := r.mergeable(a, b); err != nil {
		return nil, err
	}
	out := without(a)
	for _, key := range b.keys {
		was, is := a.members[key], b.members[key]
		if _, says := keywords[key]; was == nil || !says {
			if was == nil {
				out.set(key, is)
			}
			continue
		}
		both, err := r.mergeKeyword(b, key, was, is)
		if err != nil || key == "type" && both.kind == 'f' {
			return both, err
		}
		out.set(key, both)
	}
	return out, nil
}

// mergeable refuses two objects of which one limits the properties that it does
// not name: which these are would be another set after merging.
func (r *schemaReader) mergeable(a, b *document) error {
	for _, two := range [][2]*document{{a, b}, {b, a}} {
		limits, other := two[0], two[1]
		extra := limits.members["additionalProperties"]
		if extra == nil || extra.kind == 't' || other.members["properties"] == nil {
			continue
		}
		named := limits.members["properties"]
		for _, key := range other.members["properties"].keys {
			if named == nil || named.members[key] == nil {
				return wrong(limits, "additionalProperties", "merged with a schema that has the property %s, which this one does not name, it is not supported", quote(key))
			}
		}
	}
	return nil
}

// mergeKeyword is what two values of a keyword say together.
func (r *schemaReader) mergeKeyword(at *document, key string, a, b *document) (*document, error) {
	if a.String() == b.String() {
		return a, nil
	}
	switch key {
	case "type":
		return mergeTypes(at, a, b)
	case "properties":
		return r.mergeProperties(at, a, b)
	case "required":
		if _, ok := a.texts(); ok && b.kind == '[' {
			out := &document{parent: a.parent, name: a.name, kind: '[', items: slices.Clone(a.items)}
			seen := map[string]bool{}
			for _, item := range a.items {
				seen[item.text] = true
			}
			for _, item := range b.items {
				if !seen[item.text] {
					out.items = append(out.items, item)
				}
			}
			return out, nil
		}
	case "items", "additionalProperties", "propertyNames":
		return allOf(a, b), nil
	case "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties":
		return larger(a, b, 1)
	case "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties":
		return larger(a, b, -1)
	}
	return nil, wrong(at, key, "two different values of %s that must both hold are not supported", quote(key))
}

// larger is the larger of two numbers, or with sign -1 the smaller.
func larger(a, b *document, sign int) (*document, error) {
	x, err := readBound(a)
	if err != nil {
		return nil, err
	}
	y, err := readBound(b)
	if err != nil {
		return nil, err
	}
	if sign*x.Cmp(y) >= 0 {
		return a, nil
	}
	return b, nil
}

// allOf is a schema that asks for both.
func allOf(a, b *document) *document {
	list := &document{parent: a.parent, name: a.name, kind: '[', items: []*document{a, b}}
	return &document{parent: a.parent, name: a.name, kind: '{', keys: []string{"allOf"}, members: map[string]*document{"allOf": list}}
}

func (r *schemaReader) mergeProperties(at, a, b *document) (*document, error) {
	if a.kind != '{' || b.kind != '{' {
		return nil, wrong(at, "properties", "it is not an object: allowed is an object of schemas")
	}
	if r.work += len(a.keys) + len(b.keys); r.work > maxSchemaWork {
		return nil, errTooLarge
	}
	out := without(a)
	for _, key := range b.keys {
		if was := a.members[key]; was != nil {
			out.set(key, allOf(was, b.members[key]))
		} else {
			out.set(key, b.members[key])
		}
	}
	return out, nil
}

// mergeTypes is the types of both; false where there is none.
func mergeTypes(at, a, b *document) (*document, error) {
	of := func(t *document) ([]string, error) {
		return typesOf(&document{parent: at.parent, name: at.name, kind: '{', members: map[string]*document{"type": t}})
	}
	first, err := of(a)
	if err != nil {
		return nil, err
	}
	second, err := of(b)
	if err != nil {
		return nil, err
	}
	out := &document{parent: a.parent, name: a.name, kind: '['}
	for _, t := range first {
		switch {
		case slices.Contains(second, t):
		case t == "number" && slices.Contains(second, "integer"):
			t = "integer"
		case t == "integer" && slices.Contains(second, "number"):
		default:
			continue
		}
		out.items = append(out.items, &document{parent: out, kind: '"', text: t})
	}
	if len(out.items) == 0 {
		out.kind = 'f'
	}
	return out, nil
}
