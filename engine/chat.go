package engine

import (
	"errors"
	"io/fs"

	"github.com/outrider-dev/outrider/engine/chat"
	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch"
)

// Why there is no chat template.
var (
	errChatLoading = errors.New("the model is still loading: try again when /readyz answers 200")
	errNoChat      = errors.New("this model has no chat template: start the server with --chat-template FILE, or use /v1/completions")
)

// loadChat reads the chat template: the configured one, whose faults end the
// start, or the model's own, whose faults only chats get to see.
func (e *Engine) loadChat(s fetch.Source) error {
	var t *chat.Template
	var err error
	if e.cfg.ChatTemplate != "" {
		if t, err = chat.LoadFile(s.Files, e.cfg.ChatTemplate); err != nil {
			return fault.Errorf(fault.InvalidConfig, "--chat-template: %w", err)
		}
	} else if t, err = chat.Load(s.Files); errors.Is(err, fs.ErrNotExist) {
		err = errNoChat
	} else if err != nil {
		e.log.Warn("chats will be refused: the model's chat template cannot be used", "error", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.chat, e.chatErr = t, err
	return nil
}

// ChatTemplate is the model's, or an error that says why there is none.
func (e *Engine) ChatTemplate() (*chat.Template, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.chat, e.chatErr
}
