package grammar

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaCase is a schema, texts of its grammar, and texts that are not.
type schemaCase struct {
	schema  string
	yes, no []string
}

var schemaCases = []schemaCase{
	{`true`, []string{`1`, `{"a":[null]}`, `"x"`}, []string{``, `x`}},
	{`{}`, []string{`-1.5e3`, `[]`}, []string{`[1`}},
	{`{"type":"string"}`, []string{`""`, `"aé\n\u00e9"`}, []string{`1`, `"a`}},
	{`{"type":"string","minLength":2,"maxLength":3}`, []string{`"ab"`, `"é\n\ud83d\ude00"`}, []string{`"a"`, `"abcd"`}},
	{`{"maxLength":0}`, []string{`""`}, []string{`"a"`, `1`}},
	{`{"type":"string","maxLength":5000}`, []string{`"` + strings.Repeat("é", 5000) + `"`}, []string{`"` + strings.Repeat("é", 5001) + `"`}},
	{`{"type":"string","pattern":"^[a-z]{2,5}$"}`, []string{`"ab"`}, []string{`"a"`, `"abcdef"`, `"ab1"`}},
	{`{"type":"string","pattern":"b+"}`, []string{`"b"`, `"xxbb\nx"`}, []string{`"a"`, `""`}},
	{`{"type":"string","pattern":"^\"\\\\"}`, []string{`"\"\\x"`}, []string{`"x"`, `""\"`}},
	{`{"type":"string","pattern":"^a|b$"}`, []string{`"ax"`, `"xb"`}, []string{`"xa"`, `"bx"`}},
	{`{"type":"string","format":"date"}`, []string{`"2026-11-29"`}, []string{`"2026-13-01"`, `"2026-02-30"`, `"x"`}},
	{`{"type":"string","format":"date-time"}`, []string{`"2026-11-29T10:00:00Z"`}, []string{`"2026-11-29"`}},
	{`{"type":"string","format":"time"}`, []string{`"23:59:59.25+01:00"`}, []string{`"24:00:00Z"`}},
	{`{"type":"string","format":"duration"}`, []string{`"P1DT2H"`, `"PT5M"`, `"P3W"`}, []string{`"P"`, `"PT"`}},
	{`{"type":"string","format":"uuid"}`, []string{`"123e4567-e89b-12d3-a456-426614174000"`}, []string{`"123e4567"`}},
	{`{"type":"string","format":"email"}`, []string{`"a.b@example.org"`}, []string{`"a"`, `"a@"`}},
	{`{"type":"string","format":"hostname"}`, []string{`"a.example"`}, []string{`"-a"`}},
	{`{"type":"string","format":"ipv4"}`, []string{`"192.0.2.255"`}, []string{`"256.0.0.1"`, `"1.2.3"`}},
	{`{"type":"string","format":"ipv6"}`, []string{`"::"`, `"2001:db8::1"`, `"1:2:3:4:5:6:7:8"`, `"1::"`}, []string{`"1:2"`, `"1::2::3"`, `"1:2:3:4:5:6:7:8:9"`}},
	{`{"type":"string","format":"uri"}`, []string{`"https://example.org:80/a/b?c=%20#d"`}, []string{`"example"`}},
	{`{"type":"boolean"}`, []string{`true`, `false`}, []string{`null`, `0`}},
	{`{"type":["string","null"]}`, []string{`null`, `"a"`}, []string{`1`}},
	{`{"enum":["a",1,null,{"b":[1,"é"]}]}`, []string{`"a"`, `1`, `null`, `{"b":[1,"é"]}`}, []string{`"b"`, `12`}},
	{`{"type":"integer","enum":[1,2.5,"3",4.0]}`, []string{`1`, `4.0`}, []string{`2.5`, `"3"`}},
	{`{"const":"a\"b"}`, []string{`"a\"b"`}, []string{`"a"`}},
	{`{"enum":["a","b"],"const":"b"}`, []string{`"b"`}, []string{`"a"`}},

	{`{"type":"integer"}`, []string{`0`, `-12`, `123456789012345678901234567890`}, []string{`1.5`, `01`, `1e3`, `"1"`}},
	{`{"type":"integer","minimum":1,"maximum":100}`, []string{`1`, `9`, `42`, `100`}, []string{`0`, `101`, `-1`, `001`, `1000`}},
	{`{"type":"integer","minimum":-105,"maximum":17}`, []string{`-105`, `-100`, `-99`, `-1`, `0`, `17`}, []string{`-106`, `18`, `-200`, `-0`}},
	{`{"type":"integer","exclusiveMinimum":0.5,"exclusiveMaximum":3}`, []string{`1`, `2`}, []string{`0`, `3`}},
	{`{"type":"integer","minimum":987}`, []string{`987`, `990`, `1000`, `12345678`}, []string{`986`, `99`, `-1000`}},
	{`{"type":"integer","maximum":-5}`, []string{`-5`, `-10`, `-99999`}, []string{`-4`, `0`, `5`}},
	{`{"type":"integer","minimum":1e3,"maximum":1.5E3}`, []string{`1000`, `1500`}, []string{`999`, `1501`}},
	{`{"type":"integer","multipleOf":1}`, []string{`7`}, []string{`7.5`}},
	{`{"type":"number"}`, []string{`0`, `-1.5E+7`}, []string{`.5`, `1.`, `NaN`}},
	{`{"type":"number","minimum":0,"maximum":1}`, []string{`0`, `0.5`, `1`, `1.00`, `0.000`}, []string{`1.01`, `-0.1`, `2`, `1e0`, `0.`}},
	{`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1}`, []string{`0.5`, `0.001`, `0.999`}, []string{`0`, `0.0`, `1`}},
	{`{"type":"number","minimum":-1.25,"maximum":2.5}`, []string{`-1.25`, `-1.2`, `-0.9`, `2.5`, `2.4999`, `2.500`, `0`, `-1`}, []string{`-1.26`, `-1.3`, `2.51`, `-2`, `3`}},
	{`{"type":"number","exclusiveMinimum":-1.25,"maximum":-0.5}`, []string{`-1.249`, `-0.5`, `-1`}, []string{`-1.25`, `-0.49`, `0`, `-1.250`}},
	{`{"type":"number","minimum":3.14,"maximum":3.15}`, []string{`3.14`, `3.141`, `3.15`}, []string{`3.1`, `3.151`, `3`, `4`}},
	{`{"type":"number","minimum":100}`, []string{`100`, `100.5`, `1234.5`}, []string{`99.9`, `-100`}},
	{`{"type":"number","maximum":-7.5}`, []string{`-7.5`, `-8`, `-123.4`}, []string{`-7.4`, `7.5`}},

	{`{"type":"array"}`, []string{`[]`, `[1, "a"]`}, []string{`{}`, `[1,]`}},
	{`{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3}`, []string{`[1]`, `[1, 2, 3]`}, []string{`[]`, `[1,2,3,4]`, `["a"]`}},
	{`{"type":"array","maxItems":0}`, []string{`[]`, `[ ]`}, []string{`[1]`}},
	{`{"type":"array","items":{"type":"null"},"minItems":2}`, []string{`[null,null]`, `[null,null,null]`}, []string{`[null]`, `[]`}},
	{`{"type":"array","items":false}`, []string{`[]`}, []string{`[1]`}},
	{`{"prefixItems":[{"type":"integer"},{"type":"string"}],"items":{"type":"null"}}`, []string{`[]`, `[1]`, `[1,"a"]`, `[1,"a",null,null]`}, []string{`["a"]`, `[1,2]`, `[1,"a",2]`}},
	{`{"prefixItems":[{"type":"integer"},{"type":"string"}],"items":false,"minItems":2}`, []string{`[1,"a"]`}, []string{`[1]`, `[1,"a",2]`, `[]`}},
	{`{"prefixItems":[{"type":"integer"}],"minItems":2,"maxItems":3}`, []string{`[1,{}]`, `[1,2,3]`}, []string{`[1]`, `[1,2,3,4]`, `["a",1]`}},
	{`{"prefixItems":[{"type":"integer"},{"type":"string"}],"maxItems":1}`, []string{`[]`, `[1]`}, []string{`[1,"a"]`}},

	{`{"type":"object"}`, []string{`{}`, `{"a":1,"b":{}}`}, []string{`[]`}},
	{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":true},"required":["b"]}`,
		[]string{`{"b":"x"}`, `{"a":1,"b":"x"}`, `{"a":1, "b":"x", "c":[]}`, `{"b":"x","c":1}`},
		[]string{`{}`, `{"a":1}`, `{"b":1}`, `{"b":"x","a":1}`, `{"b":"x","d":1}`, `{,"b":"x"}`, `{"b":"x",}`}},
	{`{"type":"object","properties":{"a":{},"b":{}}}`, []string{`{}`, `{ }`, `{"a":1}`, `{"b":1}`, `{"a":1,"b":2}`}, []string{`{"a":1,}`, `{"c":1}`}},
	{`{"type":"object","properties":{"a":{"const":1},"ab":{"const":2}},"additionalProperties":{"type":"null"}}`,
		[]string{`{}`, `{"a":1}`, `{"x":null}`, `{"a":1,"abc":null,"b":null}`, `{"ab":2,"é":null}`, `{"":null}`}, []string{`{"a":null}`, `{"ab":null}`, `{"x":1}`, `{"x":null,"a":1}`, `{"\u0061":null}`}},
	{`{"additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2}`, []string{`{"a":1}`, `{"a":1,"b":2}`}, []string{`{}`, `{"a":1,"b":2,"c":3}`, `{"a":"x"}`}},
	{`{"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":{"type":"boolean"}}`, []string{`{"ab":true}`, `{}`}, []string{`{"A":true}`, `{"ab":1}`}},
	{`{"type":"object","required":["z"],"properties":{"a":{"type":"null"}},"additionalProperties":{"type":"integer"}}`, []string{`{"z":1}`, `{"a":null,"z":1,"q":2}`}, []string{`{"a":null}`, `{"z":"x"}`}},
	{`{"type":"object","properties":{"a":false,"b":{}}}`, []string{`{}`, `{"b":1}`}, []string{`{"a":1}`}},

	{`{"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]}`, []string{`12`, `"a"`}, []string{`"ab"`, `null`}},
	{`{"type":"object","properties":{"k":{"enum":["x","y"]}},"oneOf":[{"properties":{"k":{"const":"x"},"a":{"type":"integer"}},"required":["k","a"]},{"properties":{"k":{"const":"y"},"b":{"type":"string"}},"required":["k","b"]}]}`,
		[]string{`{"k":"x","a":1}`, `{"k":"y","b":"q"}`}, []string{`{"k":"y","a":1}`, `{"k":"x"}`}},
	{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`, []string{`{"a":1}`, `{"b":2}`, `{"a":1,"b":2}`}, []string{`{}`}},
	{`{"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":3}},"required":["a"]},{"properties":{"a":{"maximum":5},"b":{"type":"null"}}}]}`, []string{`{"a":4}`, `{"a":5,"b":null}`}, []string{`{"a":2}`, `{"a":6}`, `{}`}},
	{`{"allOf":[{"type":["string","integer"]},{"type":["number","null"]}]}`, []string{`3`}, []string{`"a"`, `null`, `1.5`}},
	{`{"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/node"}`,
		[]string{`{"v":1,"next":null}`, `{"v":1,"next":{"v":2,"next":{"v":3,"next":null}}}`}, []string{`{"v":1}`, `{"v":1,"next":1}`}},
	{`{"type":"array","items":{"$ref":"#"}}`, []string{`[]`, `[[],[[]]]`, strings.Repeat("[", 300) + strings.Repeat("]", 300)}, []string{`[1]`, `[[]`}},
	{`{"anyOf":[{"type":"array","items":{"$ref":"#"}},{"type":"array","items":{"$ref":"#"},"minItems":0},{"type":"null"}]}`, []string{`[[null],[[]]]`, strings.Repeat("[", 300) + strings.Repeat("]", 300)}, []string{`[1]`}},
	{`{"$ref":"#/$defs/a~1b%20c","description":"x","$defs":{"a/b c":{"type":"null"}}}`, []string{`null`}, []string{`1`}},
	{`{"$ref":"#/$defs/s","maxLength":2,"$defs":{"s":{"type":"string","minLength":1}}}`, []string{`"a"`, `"ab"`}, []string{`""`, `"abc"`}},
	{`{"type":"object","properties":{"p":{"type":"string"}},"required":["p"],"x-order":1,"title":"T","description":"d","$schema":"https://json-schema.org/draft/2020-12/schema"}`, []string{`{"p":""}`}, []string{`{}`}},
}

func TestSchema(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range schemaCases {
		t.Run(c.schema, func(t *testing.T) {
			g := compile(t, single, Schema(json.RawMessage(c.schema)))
			oracle := validator(t, c.schema)
			for _, text := range c.yes {
				if !takes(t, g, text) {
					t.Errorf("%.100s is not taken", text)
				}
				if !oracle(text) {
					t.Errorf("%.100s is wrong, though the case wants it", text)
				}
			}
			for _, text := range c.no {
				if takes(t, g, text) {
					t.Errorf("%.100s is taken", text)
				}
			}
			for range 150 { // whatever is written satisfies the schema
				text := write(t, g, rng, rng.IntN(80))
				if text != "" && !oracle(text) {
					t.Errorf("wrote %s", text)
				}
			}
		})
	}
}

// validator judges texts by another implementation of JSON Schema.
func validator(t *testing.T, schema string) func(text string) bool {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) bool {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		return err == nil && s.Validate(doc) == nil
	}
}

func TestSchemaRefuses(t *testing.T) {
	deep := strings.Repeat(`{"items":`, 100) + `true` + strings.Repeat(`}`, 100)
	for _, c := range []struct{ schema, says string }{
		{`{`, "not valid JSON"}, {`{} {}`, "goes on"}, {`1`, "#: it is"}, {`{"type":"object","type":"string"}`, "given twice"},
		{`{"not":{}}`, `#/not: the keyword "not" is not supported`},
		{`{"properties":{"a/b":{"if":true}}}`, `#/properties/a~1b/if: the keyword "if"`},
		{`{"patternProperties":{}}`, "patternProperties"}, {`{"properties":{"a":{"$id":"x"}}}`, "$id"},
		{`{"type":"text"}`, "#/type: it is"}, {`{"type":[]}`, "#/type"}, {`{"type":5}`, "#/type"},
		{`{"$ref":"other.json"}`, "#/$ref"}, {`{"$ref":"#/$defs/x"}`, "leads nowhere"}, {`{"$ref":5}`, "#/$ref"},
		{`{"$ref":"#"}`, "no text at all"}, {`{"anyOf":[{"$ref":"#"},{"type":"null"}]}`, "refers to itself"},
		{`{"allOf":[{"$ref":"#"}]}`, "refers to itself"},
		{`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "no text at all"},
		{`false`, "no text at all"}, {`{"type":"string","minLength":3,"maxLength":2}`, "no text at all"}, {`{"minimum":3,"maximum":2}`, "no text at all"},
		{`{"anyOf":[]}`, "#/anyOf"}, {`{"allOf":{}}`, "#/allOf"}, {`{"enum":[]}`, "#/enum"}, {`{"enum":["a"],"minLength":1}`, "beside enum"},
		{`{"minLength":-1}`, "#/minLength"}, {`{"minLength":1.5}`, "#/minLength"}, {`{"maxLength":1e9}`, "#/maxLength"}, {`{"maxItems":99999999999999999999}`, "#/maxItems"},
		{`{"minimum":1e999999999}`, "#/minimum"}, {`{"minimum":"1"}`, "#/minimum"}, {`{"exclusiveMinimum":true}`, "#/exclusiveMinimum"}, {`{"multipleOf":5,"type":"integer"}`, "#/multipleOf"},
		{`{"pattern":"("}`, "#/pattern"}, {`{"pattern":1}`, "#/pattern"}, {`{"pattern":"a","maxLength":3}`, "beside minLength"}, {`{"pattern":"a","format":"date"}`, "#/format"},
		{`{"format":"iri"}`, "supported are date"}, {`{"uniqueItems":true}`, "#/uniqueItems"}, {`{"items":[{}]}`, "prefixItems"}, {`{"required":"a"}`, "#/required"},
		{`{"required":["a","a"]}`, "#/required"}, {`{"properties":[]}`, "#/properties"}, {`{"properties":{"a":5}}`, "#/properties/a"},
		{`{"properties":{"a":{}},"minProperties":1}`, "minProperties"}, {`{"properties":{"a":{}},"propertyNames":{}}`, "propertyNames"},
		{`{"allOf":[{"properties":{"a":{}},"additionalProperties":false},{"properties":{"b":{}}}]}`, "additionalProperties"},
		{`{"allOf":[{"pattern":"a"},{"pattern":"b"}]}`, `two different values of "pattern"`},
		{deep, "nested deeper"},
		{`{"minItems":16000,"items":{"minItems":16000,"items":{"type":"null"}}}`, "too large"},
		{`"` + strings.Repeat("x", maxSchemaBytes) + `"`, "allowed are"},
	} {
		_, err := Compile(single, Schema(json.RawMessage(c.schema)))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.80s: %v, want %q", c.schema, err, c.says)
		}
	}
}
