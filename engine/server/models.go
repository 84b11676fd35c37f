package server

import (
	"fmt"
	"net/http"
)

// modelCard is a model in OpenAI's shape.
type modelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"` // Unix seconds: when the server started
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len,omitempty"` // context length; unknown while the model loads
}

func (s *Server) card() modelCard {
	info := s.backend.Info()
	return modelCard{ID: info.ServedModelName, Object: "model", Created: s.started.Unix(), OwnedBy: "outrider", MaxModelLen: info.ContextLength}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", []modelCard{s.card()}})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	card := s.card()
	if err := checkModel(r.PathValue("name"), card.ID); err != nil {
		err.write(w)
		return
	}
	writeJSON(w, http.StatusOK, card)
}

// checkModel reports a model that is not served here.
func checkModel(asked, served string) *apiError {
	if asked == served {
		return nil
	}
	e := newError(http.StatusNotFound, typeInvalid, codeModelNotFound, fmt.Sprintf("the model %q does not exist: this server has %q", shorten(asked), served))
	param := "model"
	e.Param = &param
	return e
}
