// Package golden has the reference's outputs of the bundled model, for tests: a
// PyTorch implementation computed them in float32, greedily.
package golden

import (
	_ "embed"
	"encoding/json"
	"sync"
)

//go:embed gocode.json
var gocode []byte

// File is gocode.json.
type File struct {
	Speculation []Case      `json:"speculation"`
	Tokenizer   []Tokenized `json:"tokenizer"`
}

// Case is a prompt, what follows it, and how drafts of Steps tokens came to it.
type Case struct {
	Text       string       `json:"text"`
	Prompt     []int32      `json:"prompt_ids"`
	Output     []int32      `json:"output_ids"`
	OutputText string       `json:"output_text"`
	Gap        float64      `json:"smallest_top2_gap"` // of the two highest logits, the least over the output
	TopLogits  [2][]float64 `json:"last_logits_top8"`  // after the prompt: ids, values
	Steps      int          `json:"steps"`
	Cycles     []Cycle      `json:"cycles"`
}

// Cycle is a draft, and how the target took it.
type Cycle struct {
	Draft    []int32        `json:"draft"`
	Top4     [][2][]float64 `json:"draft_top4"` // by step: target ids, probabilities; for the first cycles
	Accepted int            `json:"accepted"`
	Bonus    int32          `json:"bonus"`
}

// Tokenized is a text with its tokens.
type Tokenized struct {
	Text           string  `json:"text"`
	IDs            []int32 `json:"ids"`
	IDsWithSpecial []int32 `json:"ids_with_special"`
	Decoded        string  `json:"decoded"`
}

var read = sync.OnceValue(func() File {
	var f File
	if err := json.Unmarshal(gocode, &f); err != nil || len(f.Speculation) == 0 || len(f.Tokenizer) == 0 {
		panic("golden: gocode.json has no cases, or is damaged") // it is part of the source
	}
	return f
})

// Read is the file. It is shared: do not change it.
func Read() File { return read() }

// Cases are those of the file.
func Cases() []Case { return read().Speculation }
