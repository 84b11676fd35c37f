package server

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var personSchema = fields{"type": "object", "properties": fields{
	"name": fields{"type": "string", "maxLength": 10}, "age": fields{"type": "integer", "minimum": 0, "maximum": 150}, "kind": fields{"enum": []string{"a", "b"}},
}, "required": []string{"name", "age"}, "additionalProperties": false}

// Each way to ask for a form, whole and streamed: the text has it, and ends where it is complete.
func TestForms(t *testing.T) {
	in := sharedInstance(t)
	person := func(text string) bool {
		var v struct {
			Name *string `json:"name"`
			Age  *int    `json:"age"`
			Kind string  `json:"kind"`
		}
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		return d.Decode(&v) == nil && v.Name != nil && len([]rune(*v.Name)) <= 10 && v.Age != nil && *v.Age >= 0 && *v.Age <= 150 && slices.Contains([]string{"", "a", "b"}, v.Kind)
	}
	schema, err := json.Marshal(personSchema)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		ask  fields
		has  func(text string) bool
	}{
		{"json_schema", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "person", "strict": true, "schema": personSchema}}}, person},
		{"guided_json", fields{"guided_json": personSchema}, person},
		{"guided_json as text", fields{"guided_json": string(schema)}, person},
		{"json_object", fields{"response_format": fields{"type": "json_object"}, "prompt": "{\"a\": 1}\n{\"b\": 2}\n", "logit_bias": fields{"202": -100}}, func(text string) bool {
			return strings.HasPrefix(strings.TrimSpace(text), "{")
		}},
		{"guided_regex", fields{"guided_regex": `[a-c]{2}-\d{3}`}, regexp.MustCompile(`^[a-c]{2}-\d{3}$`).MatchString},
		{"guided_choice", fields{"guided_choice": []string{"func", "type", "fünf"}}, regexp.MustCompile(`^(func|type|fünf)$`).MatchString},
		{"n", fields{"guided_regex": `\d{5}`, "n": 3}, regexp.MustCompile(`^\d{5}$`).MatchString},
		{"text", fields{"response_format": fields{"type": "text"}, "max_tokens": 3, "seed": 5}, nil},
		{"null", fields{"response_format": nil, "guided_json": nil, "guided_regex": nil, "guided_choice": nil, "max_tokens": 3}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ask := fields{"prompt": "package main\n", "max_tokens": 200, "temperature": 0.7, "seed": 7}
			for k, v := range c.ask {
				ask[k] = v
			}
			whole, streamed := in.post(t, ask), in.streamed(t, ask)
			for i, choice := range whole.Choices {
				if choice.Text != streamed.Choices[i].Text || *choice.FinishReason != *streamed.Choices[i].FinishReason {
					t.Errorf("whole %q, streamed %q", choice.Text, streamed.Choices[i].Text)
				}
				if c.has == nil {
					continue
				}
				if !c.has(choice.Text) {
					t.Errorf("the text is %q", choice.Text)
				}
				if *choice.FinishReason != "stop" && c.name != "json_object" {
					t.Errorf("%q ends by %s", choice.Text, *choice.FinishReason)
				}
			}
		})
	}
}

func TestFormRefusals(t *testing.T) {
	in := sharedInstance(t)
	with := func(field string) string { return `{"model":"gocode-7m","prompt":[1,2],` + field + `}` }
	format := func(f string) string { return with(`"response_format":` + f) }
	for _, c := range []refusal{
		{"format", format(`"json"`), "response_format", "an object", ""},
		{"no type", format(`{}`), "response_format", `type is ""`, ""},
		{"type", format(`{"type":"xml"}`), "response_format", "json_object and json_schema", ""},
		{"type number", format(`{"type":5}`), "response_format", "a string", ""},
		{"unknown member", format(`{"type":"text","x":1}`), "response_format", `no "x"`, ""},
		{"no schema", format(`{"type":"json_schema"}`), "response_format", "json_schema is missing", ""},
		{"no schema in it", format(`{"type":"json_schema","json_schema":{"name":"a"}}`), "response_format", "schema is missing", ""},
		{"unknown in it", format(`{"type":"json_schema","json_schema":{"shema":{}}}`), "response_format", `no "shema"`, ""},
		{"schema of another type", format(`{"type":"json_object","json_schema":{}}`), "response_format", `type is "json_object"`, ""},
		{"schema", format(`{"type":"json_schema","json_schema":{"name":"a","schema":{"properties":{"a":{"not":{}}}}}}`), "response_format", "#/properties/a/not", ""},
		{"strict", format(`{"type":"json_schema","json_schema":{"name":"a","strict":1,"schema":{}}}`), "response_format", "true or false", ""},
		{"two forms", with(`"guided_regex":"a","guided_choice":["a"]`), "guided_choice", "guided_regex and guided_choice", ""},
		{"a form and a format", with(`"guided_json":{},"response_format":{"type":"json_object"}`), "response_format", "leave one of them out", ""},
		{"regex", with(`"guided_regex":"("`), "guided_regex", "RE2", ""},
		{"regex repeated too often", with(`"guided_regex":"a{1001}"`), "guided_regex", "up to 1000 times", ""},
		{"regex number", with(`"guided_regex":1`), "guided_regex", "a string", ""},
		{"choice", with(`"guided_choice":"a"`), "guided_choice", "list of strings", ""},
		{"choice empty", with(`"guided_choice":[]`), "guided_choice", "at least one", ""},
		{"choice empty text", with(`"guided_choice":["a",""]`), "guided_choice", "guided_choice[1]", ""},
		{"choice number", with(`"guided_choice":[1]`), "guided_choice", "guided_choice[0]", ""},
		{"choices", with(`"guided_choice":[` + strings.Repeat(`"a",`, maxChoiceTexts) + `"b"]`), "guided_choice", "more than 4096", ""},
		{"json", with(`"guided_json":5`), "guided_json", "#: it is 5: a schema is", ""},
		{"a type that is none", with(`"guided_json":{"type":"text"}`), "guided_json", `#/type: it is "text": allowed is`, ""},
		{"a long pattern that is none", with(`"guided_json":{"type":"string","pattern":["` + strings.Repeat("x", 80) + `"]}`), "guided_json", `#/pattern: it is ["` + strings.Repeat("x", 58) + "…: allowed is a string", ""},
		{"json text", with(`"guided_json":"{"`), "guided_json", "not valid JSON", ""},
		{"nothing", with(`"guided_json":false`), "guided_json", "no text at all", ""},
		{"large", with(`"guided_json":{"minItems":16000,"items":{"minItems":16000}}`), "guided_json", "too large", ""},
		{"ignore_eos", with(`"guided_regex":"a+","ignore_eos":true`), "ignore_eos", "leave one of them out", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, b := do(t, http.MethodPost, in.public.URL+"/v1/completions", "application/json", strings.NewReader(c.body))
			var r reply
			if err := json.Unmarshal(b, &r); err != nil || resp.StatusCode != http.StatusBadRequest || r.Error == nil {
				t.Fatalf("status %d: %s", resp.StatusCode, b)
			}
			if r.Error.Param == nil || *r.Error.Param != c.param || !strings.Contains(r.Error.Message, c.message) {
				t.Errorf("%s", b)
			}
		})
	}
}
