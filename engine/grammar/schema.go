package grammar

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// What is understood of JSON Schema (draft 2020-12, and what older drafts write
// the same way). Each text of the grammar satisfies the schema; not each JSON
// text that satisfies it is one: properties come in the schema's order, those
// that the schema does not name only if additionalProperties asks for them, and
// of oneOf several may hold. What is not understood is refused by its name.

// annotations are keywords that say nothing about a value.
var annotations = map[string]bool{
	"title": true, "description": true, "default": true, "examples": true, "example": true, "$schema": true, "$comment": true,
	"deprecated": true, "readOnly": true, "writeOnly": true, "$defs": true, "definitions": true, "discriminator": true,
	"contentMediaType": true, "contentEncoding": true, "contentSchema": true, "$anchor": true,
}

// keywords are those that are understood, by the type that they are about;
// empty for those about any value.
var keywords = map[string]string{
	"type": "", "enum": "", "const": "", "anyOf": "", "oneOf": "", "allOf": "", "$ref": "",
	"properties": "object", "required": "object", "additionalProperties": "object",
	"minProperties": "object", "maxProperties": "object", "propertyNames": "object",
	"items": "array", "prefixItems": "array", "minItems": "array", "maxItems": "array", "uniqueItems": "array",
	"minLength": "string", "maxLength": "string", "pattern": "string", "format": "string",
	"minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number", "multipleOf": "number",
}

// Bounds of a schema's work, and of its numbers of items, characters and properties.
const (
	maxSchemaWork = 1 << 18 // members looked at
	maxRefs       = 32      // references and allOf that lead to one another
	maxCount      = 1 << 14
)

// schemaReader makes pieces out of a schema.
type schemaReader struct {
	b    *builder
	root *document
	key  string // of the rules of this schema
	work int
}

func readSchema(b *builder, raw json.RawMessage) (expr, error) {
	root, err := readDocument(raw)
	if err != nil {
		return nil, err
	}
	b.schemas++
	r := &schemaReader{b: b, root: root, key: fmt.Sprintf("schema %d ", b.schemas)}
	return r.rule(root), nil
}

// rule is a schema as a rule, so that it can be referred to, by itself too.
func (r *schemaReader) rule(d *document) expr {
	at := d.at()
	return r.b.rule(r.key+at, "the schema at "+at, func() (expr, error) { return r.schema(d) })
}

// wrong is the error of a keyword.
func wrong(d *document, keyword, format string, args ...any) error {
	at := d.at()
	if keyword != "" {
		at += "/" + escapePointer.Replace(keyword)
	}
	return fmt.Errorf("%s: %s", at, fmt.Sprintf(format, args...))
}

// check reports what is not a schema, or has a keyword that is not understood.
func (r *schemaReader) check(d *document) error {
	if r.work += 1 + len(d.keys); r.work > maxSchemaWork {
		return errTooLarge
	}
	if d.kind != '{' {
		return wrong(d, "", "it is %s: a schema is an object, true or false", shown(d))
	}
	for _, key := range d.keys {
		_, understood := keywords[key]
		switch {
		case understood, annotations[key], strings.HasPrefix(key, "x-"):
		case (key == "$id" || key == "id") && d.parent == nil:
		default:
			return wrong(d, key, "the keyword %s is not supported", quote(key))
		}
	}
	return nil
}

// asserts are the keywords of a schema that say something about a value.
func asserts(d *document) []string {
	var all []string
	for _, key := range d.keys {
		if _, ok := keywords[key]; ok {
			all = append(all, key)
		}
	}
	return all
}

// schema is the values that a schema describes.
func (r *schemaReader) schema(d *document) (expr, error) {
	switch d.kind {
	case 't':
		return r.b.value(), nil
	case 'f':
		return nothing, nil
	}
	if err := r.check(d); err != nil {
		return nil, err
	}
	if says := asserts(d); len(says) == 1 && says[0] == "$ref" {
		target, err := r.target(d)
		if err != nil {
			return nil, err
		}
		return r.rule(target), nil
	}
	flat, err := r.flatten(d, 0)
	if err != nil || flat.kind == 'f' {
		return nothing, err
	}
	for _, keyword := range []string{"anyOf", "oneOf"} {
		if flat.members[keyword] != nil {
			return r.anyOf(flat, keyword)
		}
	}
	if flat.members["enum"] != nil || flat.members["const"] != nil {
		return r.enum(flat)
	}
	types, err := typesOf(flat)
	if err != nil {
		return nil, err
	}
	if types == nil {
		return r.b.value(), nil
	}
	all := make([]expr, 0, len(types))
	for _, name := range types {
		e, err := r.typed(flat, name)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return either(all...), nil
}

func (r *schemaReader) typed(d *document, name string) (expr, error) {
	switch name {
	case "object":
		return r.object(d)
	case "array":
		return r.array(d)
	case "string":
		return r.text(d)
	case "number", "integer":
		return r.numeric(d, name == "integer")
	case "boolean":
		return choice([]string{"true", "false"}), nil
	}
	return literal("null"), nil
}

// target is what $ref refers to.
func (r *schemaReader) target(d *document) (*document, error) {
	ref := d.members["$ref"]
	if ref.kind != '"' {
		return nil, wrong(d, "$ref", "it is %s: allowed is a string", shown(ref))
	}
	target := r.root.find(ref.text)
	if target == nil {
		return nil, wrong(d, "$ref", "%s leads nowhere: allowed is a JSON pointer into this schema, such as \"#/$defs/name\"", quote(ref.text))
	}
	return target, nil
}

var typeNames = []string{"object", "array", "string", "number", "integer", "boolean", "null"}

// typesOf are the types that a schema allows: those that it names, or else those
// that its keywords are about; nil for any.
func typesOf(d *document) ([]string, error) {
	t := d.members["type"]
	if t == nil {
		var all []string
		for _, key := range d.keys {
			if about := keywords[key]; about != "" && !slices.Contains(all, about) {
				all = append(all, about)
			}
		}
		return all, nil
	}
	all, ok := t.texts()
	if t.kind == '"' {
		all, ok = []string{t.text}, true
	}
	for _, name := range all {
		ok = ok && slices.Contains(typeNames, name)
	}
	if !ok || len(all) == 0 {
		return nil, wrong(d, "type", "it is %s: allowed is one of %s, or a list of these", shown(t), strings.Join(typeNames, ", "))
	}
	if slices.Contains(all, "number") {
		all = slices.DeleteFunc(all, func(s string) bool { return s == "integer" })
	}
	return all, nil
}

// anyOf is one of several schemas, each together with what stands beside them.
func (r *schemaReader) anyOf(d *document, keyword string) (expr, error) {
	branches := d.members[keyword]
	if branches.kind != '[' || len(branches.items) == 0 {
		return nil, wrong(d, keyword, "it is %s: allowed is a list of schemas", shown(branches))
	}
	rest := without(d, keyword)
	alone := len(asserts(rest)) == 0
	all := make([]expr, 0, len(branches.items))
	for _, branch := range branches.items {
		if !alone && branch.kind != 'f' {
			both, err := r.flatten(branch, 0)
			if err == nil && both.kind == '{' {
				both, err = r.merge(rest, both)
			} else if err == nil && both.kind == 't' {
				both = rest
			}
			if err != nil {
				return nil, err
			}
			branch = both
		}
		e, err := r.schema(branch)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return either(all...), nil
}

// enum is one of the values that a schema lists.
func (r *schemaReader) enum(d *document) (expr, error) {
	for _, key := range asserts(d) {
		if key != "enum" && key != "const" && key != "type" {
			return nil, wrong(d, key, "beside enum or const the keyword %s is not supported: leave out the values that it forbids", quote(key))
		}
	}
	var types []string
	if d.members["type"] != nil {
		var err error
		if types, err = typesOf(d); err != nil {
			return nil, err
		}
	}
	values := []*document{d.members["const"]}
	if list := d.members["enum"]; list != nil {
		if list.kind != '[' || len(list.items) == 0 {
			return nil, wrong(d, "enum", "it is %s: allowed is a list of values", shown(list))
		}
		if one := values[0]; one != nil {
			values = slices.DeleteFunc(slices.Clone(list.items), func(v *document) bool { return v.String() != one.String() })
		} else {
			values = list.items
		}
	}
	var texts []string
	for _, v := range values {
		if types == nil || slices.Contains(types, v.typeName()) || slices.Contains(types, "integer") && v.whole() {
			texts = append(texts, v.String())
		}
	}
	return choice(texts), nil
}

// whole tells whether a value is a whole number.
func (d *document) whole() bool {
	if d.kind != '0' {
		return false
	}
	x, err := readBound(d)
	return err == nil && x.IsInt()
}

// text is strings.
func (r *schemaReader) text(d *document) (expr, error) {
	least, most, err := counts(d, "minLength", "maxLength")
	if err != nil {
		return nil, err
	}
	pattern, format := d.members["pattern"], d.members["format"]
	sized := least > 0 || most >= 0
	switch {
	case pattern != nil && pattern.kind != '"':
		return nil, wrong(d, "pattern", "it is %s: allowed is a string", shown(pattern))
	case format != nil && format.kind != '"':
		return nil, wrong(d, "format", "it is %s: allowed is a string", shown(format))
	case pattern != nil && format != nil:
		return nil, wrong(d, "format", "beside pattern the keyword \"format\" is not supported: leave one of them out")
	case pattern != nil && sized:
		return nil, wrong(d, "pattern", "beside minLength and maxLength the keyword \"pattern\" is not supported: say the length in the pattern, such as ^[a-z]{2,5}$")
	case format != nil && sized:
		return nil, wrong(d, "format", "beside minLength and maxLength the keyword \"format\" is not supported: leave them out")
	case pattern != nil:
		e, err := regex(pattern.text, true, r.b.inString)
		if err != nil {
			return nil, wrong(d, "pattern", "%v", err)
		}
		return concat(literal(`"`), e, literal(`"`)), nil
	case format != nil:
		return r.format(d, format.text)
	case sized && most >= 0 && most < least:
		return nothing, nil
	case sized:
		return concat(literal(`"`), repeat(r.b.character(), least, most), literal(`"`)), nil
	}
	return r.b.str(), nil
}

// counts reads two keywords for the least and the most of something; most is
// negative where it is not given.
func counts(d *document, leastName, mostName string) (least, most int, err error) {
	read := func(name string, absent int) int {
		v := d.members[name]
		if v == nil || err != nil {
			return absent
		}
		n, parse := strconv.Atoi(v.text)
		if v.kind != '0' || parse != nil || n < 0 || n > maxCount {
			err = wrong(d, name, "it is %s: allowed is a whole number from 0 to %d", shown(v), maxCount)
		}
		return n
	}
	least, most = read(leastName, 0), read(mostName, -1)
	return least, most, err
}
