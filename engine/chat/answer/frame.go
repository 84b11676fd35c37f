package answer

// Frame is what stands around calls in a format.
type Frame struct {
	Close string // after the arguments, up to the end of the call
	End   string // after the last call
	More  string // between two calls; empty where one answer with several is not of this form
}

// FrameOf is the frame of a format for a model with a chat template.
func FrameOf(tools, template string) Frame {
	switch tools {
	case Hermes:
		return Frame{Close: "}\n" + hermesClose, More: "\n"}
	case Llama3:
		return Frame{Close: "}", More: "; "}
	case Mistral:
		if Opening(Mistral, "", template) == mistralCalls {
			return Frame{} // the newer format
		}
		return Frame{Close: "}", End: "]", More: ", "}
	}
	return Frame{}
}
