// Package engineclient asks an engine how it is, over the HTTP contract between
// engine and operator (/progress, /metrics, /health_generate on the admin port).
// It shares no code with the engine, so that the two can be of different
// versions, and believes nothing about an answer but what it checks.
package engineclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Bounds of the answers that are read.
const (
	maxProgress = 1 << 20
	maxMetrics  = 8 << 20
	maxError    = 1 << 10
)

// Progress is the answer of GET /progress.
type Progress struct {
	Phase       string    `json:"phase"`   // fetch, load, collective, kernels, capture, warmup, serving, draining
	Percent     float64   `json:"percent"` // 0 to 100
	BytesDone   int64     `json:"bytes_done"`
	BytesTotal  int64     `json:"bytes_total"`
	ShardsDone  int64     `json:"shards_done"`
	ShardsTotal int64     `json:"shards_total"`
	LastAdvance time.Time `json:"last_advance"`
	Ranks       []Rank    `json:"ranks"`

	Device       string `json:"device"`        // cpu or cuda; empty: not chosen yet
	DeviceReason string `json:"device_reason"` // why that one
}

// Rank is one rank's part of the answer.
type Rank struct {
	Rank     int       `json:"rank"`
	Phase    string    `json:"phase"`
	Percent  float64   `json:"percent"`
	LastStep time.Time `json:"last_step"`
}

// Metrics are the figures that the operator reads from GET /metrics; the sums
// are over all label sets of a name, and a name that is missing is 0.
type Metrics struct {
	Depth            float64 // outrider_spec_depth, the most over its label sets
	AcceptLength     float64 // outrider_spec_accept_length, the most over its label sets
	TokensPerSecond  float64 // outrider_generation_tokens_per_second
	GenerationTokens float64 // outrider_generation_tokens_total
	Running          float64 // outrider_requests_running
	Waiting          float64 // outrider_requests_waiting
	KVUsage          float64 // outrider_kv_cache_usage_ratio, the most over its label sets
	Gain             float64 // outrider_spec_gain_ratio, the most over its label sets; 0: not measured
	InterToken       Timing  // outrider_inter_token_seconds
	Verify           Timing  // outrider_phase_seconds of phase verify
}

// Timing is the sum and the number of a histogram's observations so far.
type Timing struct {
	Seconds float64
	Count   float64
}

// ErrUnauthorized is the cause of an error of an engine that asks for another
// token.
var ErrUnauthorized = errors.New("the engine asks for another admin token")

type tokensKey struct{}

// WithTokens makes the questions that are asked with the context show a token:
// the first of the list that the engine takes.
func WithTokens(ctx context.Context, tokens []string) context.Context {
	return context.WithValue(ctx, tokensKey{}, tokens)
}

// Client asks engines. Its zero value is not usable; see New.
type Client struct {
	http *http.Client
}

// New makes a client. It follows no redirects and uses no proxy: it talks to pod
// addresses only.
func New() *Client {
	return &Client{http: &http.Client{
		Transport: &http.Transport{
			Proxy:                 nil,
			DialContext:           (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			MaxIdleConnsPerHost:   1,
			IdleConnTimeout:       30 * time.Second,
			ResponseHeaderTimeout: 0, // the context of each call bounds it
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Base is the admin address of a pod.
func Base(ip string, port int) string {
	return "http://" + net.JoinHostPort(ip, fmt.Sprint(port))
}

// Progress asks how far the engine is.
func (c *Client) Progress(ctx context.Context, base string) (*Progress, error) {
	body, err := c.get(ctx, base+"/progress", maxProgress)
	if err != nil {
		return nil, err
	}
	var p Progress
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, fmt.Errorf("GET /progress: the answer is not the expected JSON: %w", err)
	}
	if p.Phase == "" {
		return nil, errors.New("GET /progress: the answer names no phase")
	}
	return &p, nil
}

// Metrics reads the engine's figures.
func (c *Client) Metrics(ctx context.Context, base string) (*Metrics, error) {
	body, err := c.get(ctx, base+"/metrics", maxMetrics)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		return nil, fmt.Errorf("GET /metrics: the answer is not the Prometheus text format: %w", err)
	}
	sum := func(a, b float64) float64 { return a + b }
	most := func(a, b float64) float64 { return max(a, b) }
	return &Metrics{
		Depth:            fold(families["outrider_spec_depth"], most),
		AcceptLength:     fold(families["outrider_spec_accept_length"], most),
		TokensPerSecond:  fold(families["outrider_generation_tokens_per_second"], sum),
		GenerationTokens: fold(families["outrider_generation_tokens_total"], sum),
		Running:          fold(families["outrider_requests_running"], sum),
		Waiting:          fold(families["outrider_requests_waiting"], sum),
		KVUsage:          fold(families["outrider_kv_cache_usage_ratio"], most),
		Gain:             fold(families["outrider_spec_gain_ratio"], most),
		InterToken:       timing(families["outrider_inter_token_seconds"], "", ""),
		Verify:           timing(families["outrider_phase_seconds"], "phase", "verify"),
	}, nil
}

// timing adds up a histogram over its label sets, or those with a label's value.
func timing(f *dto.MetricFamily, label, value string) Timing {
	var t Timing
	for _, m := range f.GetMetric() {
		has := label == ""
		for _, l := range m.GetLabel() {
			has = has || l.GetName() == label && l.GetValue() == value
		}
		if h := m.GetHistogram(); h != nil && has {
			t.Seconds += h.GetSampleSum()
			t.Count += float64(h.GetSampleCount())
		}
	}
	return t
}

// fold joins the values of a counter or gauge over its label sets.
func fold(f *dto.MetricFamily, join func(a, b float64) float64) float64 {
	total := 0.0
	for _, m := range f.GetMetric() {
		switch {
		case m.Gauge != nil:
			total = join(total, m.Gauge.GetValue())
		case m.Counter != nil:
			total = join(total, m.Counter.GetValue())
		case m.Untyped != nil:
			total = join(total, m.Untyped.GetValue())
		}
	}
	return total
}

// DeepProbe makes the model generate, through draft and verification on all
// ranks; nil when it did.
func (c *Client) DeepProbe(ctx context.Context, base string) error {
	_, err := c.get(ctx, base+"/health_generate", maxProgress)
	return err
}

// Speculation is the answer of GET and PUT /v1/speculation.
type Speculation struct {
	Mode     string `json:"mode"` // auto, fixed or off
	MinSteps int    `json:"min_steps"`
	MaxSteps int    `json:"max_steps"`
	NumSteps int    `json:"num_steps"` // in force
}

const speculationPath = "/v1/speculation"

// Speculation asks how the engine speculates.
func (c *Client) Speculation(ctx context.Context, base string) (*Speculation, error) {
	body, err := c.get(ctx, base+speculationPath, maxProgress)
	if err != nil {
		return nil, err
	}
	return readSpeculation(http.MethodGet, body)
}

// SetSpeculation asks for a mode and bounds from the next cycle on, and returns
// what is in force then.
func (c *Client) SetSpeculation(ctx context.Context, base string, mode string, least, most int) (*Speculation, error) {
	request, err := json.Marshal(map[string]any{"mode": mode, "min_steps": least, "max_steps": most})
	if err != nil {
		return nil, err
	}
	body, err := c.do(ctx, http.MethodPut, base+speculationPath, request, maxProgress)
	if err != nil {
		return nil, err
	}
	return readSpeculation(http.MethodPut, body)
}

func readSpeculation(method string, body []byte) (*Speculation, error) {
	var s Speculation
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, fmt.Errorf("%s %s: the answer is not the expected JSON: %w", method, speculationPath, err)
	}
	if s.Mode == "" {
		return nil, fmt.Errorf("%s %s: the answer names no mode", method, speculationPath)
	}
	return &s, nil
}

func (c *Client) get(ctx context.Context, url string, limit int64) ([]byte, error) {
	return c.do(ctx, http.MethodGet, url, nil, limit)
}

// do asks, with each of the context's tokens until one is taken.
func (c *Client) do(ctx context.Context, method, address string, request []byte, limit int64) ([]byte, error) {
	tokens, _ := ctx.Value(tokensKey{}).([]string)
	for i := 0; ; i++ {
		token := ""
		if i < len(tokens) {
			token = tokens[i]
		}
		body, err := c.once(ctx, method, address, token, request, limit)
		if !errors.Is(err, ErrUnauthorized) || i+1 >= len(tokens) {
			return body, err
		}
	}
}

func (c *Client) once(ctx context.Context, method, address, token string, request []byte, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	path := req.URL.Path
	if request != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, cause(err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusUnauthorized {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxError)) // to keep the connection
		return nil, fmt.Errorf("%s %s: %w", method, path, ErrUnauthorized)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError))
		return nil, fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, strings.Join(strings.Fields(string(text)), " "))
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, cause(err))
	}
	if int64(len(body)) > limit {
		return nil, fmt.Errorf("%s %s: the answer is longer than %d bytes", method, path, limit)
	}
	return body, nil
}

// cause drops the address that net/http puts before an error: it changes with
// each pod, and the reader knows which pod it is about.
func cause(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
