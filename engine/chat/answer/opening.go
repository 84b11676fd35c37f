package answer

import (
	"encoding/json"
	"strings"
)

// Opening is how a call begins in a format: up to its arguments if the name is
// given, otherwise up to the name. A prompt that ends with it forces a call. A
// model whose template has [ARGS] is of the newer of Mistral's two formats.
func Opening(tools, name, template string) string {
	quoted, _ := json.Marshal(name) // strings never fail
	object := func(open, key string) string {
		if name == "" {
			return open + `{"name": "`
		}
		return open + `{"name": ` + string(quoted) + `, "` + key + `": `
	}
	switch tools {
	case Hermes:
		return object(hermesOpen+"\n", "arguments")
	case Llama3:
		return object("", "parameters")
	case Mistral:
		if !strings.Contains(template, mistralArgs) {
			return object(mistralCalls+" [", "arguments")
		}
		return join(mistralCalls, name, mistralArgs)
	case KimiK2:
		if name == "" {
			return kimiMarks.section + kimiMarks.call + "functions."
		}
		return join(kimiMarks.section+kimiMarks.call, "functions."+name+":0", kimiMarks.sep)
	case DeepSeek:
		return join(deepSeekMarks.section+deepSeekMarks.call, name, deepSeekMarks.sep)
	}
	return ""
}

func join(open, name, end string) string {
	if name == "" {
		return open
	}
	return open + name + end
}
