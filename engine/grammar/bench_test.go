package grammar

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const orderSchema = `{"type":"object","properties":{
	"id":{"type":"string","format":"uuid"},"customer":{"$ref":"#/$defs/person"},"note":{"type":"string","maxLength":400},
	"lines":{"type":"array","minItems":1,"items":{"type":"object","properties":{"sku":{"type":"string","pattern":"^[A-Z]{3}-[0-9]{4}$"},
		"count":{"type":"integer","minimum":1,"maximum":999},"price":{"type":"number","minimum":0},"tags":{"type":"array","items":{"enum":["new","sale","heavy","fragile"]}}},"required":["sku","count"]}},
	"state":{"enum":["open","paid","shipped"]},"extra":{"type":"object"}},"required":["id","customer","lines","state"],
	"$defs":{"person":{"type":"object","properties":{"name":{"type":"string"},"email":{"type":"string","format":"email"},"friend":{"$ref":"#/$defs/person"}},"required":["name"]}}}`

// tokenize cuts a text into the longest tokens.
func tokenize(t testing.TB, v *Vocabulary, text string) []int32 {
	t.Helper()
	var ids []int32
	for text != "" {
		best, length := int32(-1), 0
		at, end := int32(1), int32(len(v.within.nodes)-1)
		for depth := 0; at < end && depth < len(text); {
			n := v.within.nodes[at]
			if n.b != text[depth] {
				at = n.skip
				continue
			}
			if depth++; v.within.nodes[at+1].ends > n.ends {
				best, length = v.within.sorted[n.ends], depth
			}
			at, end = at+1, n.skip
		}
		if best < 0 {
			t.Fatalf("no token begins %q", text)
		}
		ids, text = append(ids, best), text[length:]
	}
	return ids
}

// anOrder is a text of orderSchema, or at least a JSON object.
func anOrder(rng *rand.Rand) string {
	word := func() string {
		return []string{"brin", "stone", "plai", "Über", "crane 12", "thou \\\"so\\\"", "ник"}[rng.IntN(7)]
	}
	var person func(depth int) string
	person = func(depth int) string {
		s := fmt.Sprintf(`{"name": "%s %s"`, word(), word())
		if depth > 0 {
			s += `, "friend": ` + person(depth-1)
		}
		return s + "}"
	}
	var lines []string
	for range 1 + rng.IntN(6) {
		lines = append(lines, fmt.Sprintf("\n    {\"sku\": \"ABC-%04d\", \"count\": %d, \"price\": %.2f, \"tags\": [\"new\", \"heavy\"]}", rng.IntN(10000), 1+rng.IntN(999), rng.Float64()*100))
	}
	note := strings.TrimSpace(strings.Repeat(word()+" ", 1+rng.IntN(20)))
	return fmt.Sprintf("{\n  \"id\": \"123e4567-e89b-12d3-a456-42661417%04d\",\n  \"customer\": %s,\n  \"note\": \"%s\",\n  \"lines\": [%s\n  ],\n  \"state\": \"paid\",\n  \"extra\": {\"a\": [1, {\"b\": [null, true, -1.5e3]}]}\n}",
		rng.IntN(10000), person(rng.IntN(4)), note, strings.Join(lines, ","))
}

// BenchmarkMask is the cost of a token on a vocabulary of 128,000: its mask with
// the state after it, and apart from that the logits that the mask keeps. The
// first text of a grammar finds no masks but those made with the grammar; later
// texts find those that others needed.
func BenchmarkMask(b *testing.B) {
	v := large()
	logits, kept := make([]float32, v.size), make([]float32, v.size)
	minusInf := float32(math.Inf(-1))
	for _, c := range []struct {
		name string
		src  Source
	}{
		{"object", JSONObject()}, {"schema", Schema(json.RawMessage(orderSchema))}, {"regex", Regex(`\{(.|\n)*\}`)},
	} {
		run := func(g *Grammar, rng *rand.Rand, longest, keeping *time.Duration) (tokens int) {
			ids := tokenize(b, v, anOrder(rng))
			s := g.Start()
			for _, id := range ids {
				begin := time.Now()
				m, err := s.Mask()
				if err != nil {
					b.Fatal(err)
				}
				*longest = max(*longest, time.Since(begin))
				begin = time.Now()
				m.Keep(kept, logits, minusInf)
				*keeping += time.Since(begin)
				var ok bool
				if s, ok, err = s.Next(id); !ok || err != nil {
					b.Fatalf("%q is refused: %v", v.within.token(id), err)
				}
			}
			if !s.Complete() && c.name != "regex" {
				b.Fatal("the text is not whole")
			}
			return len(ids)
		}
		for _, kind := range []string{"first", "later"} {
			b.Run(c.name+"/"+kind, func(b *testing.B) {
				g := compile(b, v, c.src)
				rng := rand.New(rand.NewPCG(9, 9))
				tokens, longest, keeping := 0, time.Duration(0), time.Duration(0)
				if kind == "later" {
					for range 5 {
						run(g, rng, &longest, &keeping)
					}
					longest, keeping = 0, 0
				}
				for b.Loop() {
					if kind == "first" {
						b.StopTimer()
						g = compile(b, v, c.src)
						b.StartTimer()
					}
					tokens += run(g, rng, &longest, &keeping)
				}
				b.ReportMetric(float64((b.Elapsed()-keeping).Nanoseconds())/1e3/float64(tokens), "µs/mask")
				b.ReportMetric(float64(keeping.Nanoseconds())/1e3/float64(tokens), "µs/logits")
				b.ReportMetric(float64(longest.Microseconds()), "µs/longest")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkCompile is the time from a source to a grammar, the masks that it
// starts with included.
func BenchmarkCompile(b *testing.B) {
	v := large()
	for name, src := range map[string]Source{
		"object": JSONObject(), "schema": Schema(json.RawMessage(orderSchema)), "regex": Regex(`\{(.|\n)*\}`),
		"long": Schema(json.RawMessage(`{"type":"string","maxLength":16000}`)),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				compile(b, v, src)
			}
		})
	}
}

func BenchmarkVocabulary(b *testing.B) {
	t := realistic()
	for b.Loop() {
		NewVocabulary(t)
	}
}
