package fetch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/outrider-dev/outrider/engine/fault"
)

// hubScheme begins the reference of a repository of a model hub: hf://OWNER/NAME[@REVISION].
const hubScheme = "hf://"

// DefaultEndpoint is the hub unless another is given.
const DefaultEndpoint = "https://huggingface.co"

const maxAnswer = 64 << 20 // bytes of the hub's description of a repository

var (
	hubRepo     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?$`)
	hubRevision = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}$`)
	commit      = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha256Hex   = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// hub is a repository of a model hub that speaks as Hugging Face's does.
type hub struct {
	endpoint, token string
	repo, revision  string
	client          *http.Client
	version         string // the commit; set by list
}

// splitHub takes a reference apart.
func splitHub(ref string) (repo, revision string) {
	repo, revision, ok := strings.Cut(strings.TrimPrefix(ref, hubScheme), "@")
	if !ok {
		revision = "main"
	}
	return repo, revision
}

func newHub(ref string, opts Options) (*hub, error) {
	h := &hub{endpoint: strings.TrimRight(opts.Endpoint, "/"), token: opts.Token, client: newClient()}
	h.repo, h.revision = splitHub(ref)
	at, err := url.Parse(h.endpoint)
	switch {
	case err != nil || at.Scheme != "https" && at.Scheme != "http" || at.Host == "" || at.RawQuery != "" || at.Fragment != "" || at.User != nil:
		return nil, fault.Errorf(fault.InvalidConfig, "HF_ENDPOINT is no address of a hub: give one like %s", DefaultEndpoint)
	case !hubRepo.MatchString(h.repo) || strings.Contains(h.repo, ".."):
		return nil, fault.Errorf(fault.InvalidConfig, "%.300q is no repository of a hub: give hf://OWNER/NAME or hf://OWNER/NAME@REVISION", ref)
	case !hubRevision.MatchString(h.revision) || strings.Contains(h.revision, ".."):
		return nil, fault.Errorf(fault.InvalidConfig, "%.300q has no valid revision after the @: give a branch, a tag or a commit", ref)
	case strings.ContainsFunc(h.token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, fault.Errorf(fault.InvalidConfig, "the hub's access token (HF_TOKEN or --hf-token-file) has characters that no token has")
	}
	return h, nil
}

func (h *hub) key() string {
	name := plain(strings.ReplaceAll(h.repo, "/", "--"))
	if h.endpoint == DefaultEndpoint {
		return "hf/" + name
	}
	return "hf/" + plain(h.endpoint) + "/" + name
}

func (h *hub) pinned() string {
	if commit.MatchString(h.revision) {
		return h.revision
	}
	return ""
}

func (h *hub) ref() string { return plain(h.revision) }

// get asks the hub; the answer is one of success.
func (h *hub) get(ctx context.Context, address string, offset int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "outrider-engine")
	req.Header.Set("Accept-Encoding", "identity")
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, quiet(err)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent && offset > 0 {
		return resp, nil
	}
	defer drop(resp.Body)
	return nil, statusError(resp, resp.Request.URL.Host == req.URL.Host, func(status int) error { return h.refused(status, resp.Header.Get("X-Error-Code")) })
}

// refused says what to do about an answer of the hub's; code is its own word
// for it.
func (h *hub) refused(status int, code string) error {
	token := "the access token that HF_TOKEN or --hf-token-file gives must be valid and may read it"
	if h.token == "" {
		token = "set HF_TOKEN or --hf-token-file to an access token that may read it"
	}
	switch {
	case code == "GatedRepo":
		return fault.Errorf(fault.Unauthorized, "%s is gated: accept its terms at %s/%s, and %s", h.repo, h.endpoint, h.repo, token)
	case code == "RevisionNotFound":
		return fault.Errorf(fault.ModelNotFound, "%s has no revision %s: give a branch, a tag or a commit that %s/%s has", h.repo, h.revision, h.endpoint, h.repo)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fault.Errorf(fault.Unauthorized, "%s answers %d %s: there is no repository %s, or it is private: check the name, or %s", h.endpoint, status, http.StatusText(status), h.repo, token)
	}
	return fault.Errorf(fault.ModelNotFound, "%s answers %d %s: %s at revision %s is not there: check owner, name and revision", h.endpoint, status, http.StatusText(status), h.repo, h.revision)
}

// hubModel is the hub's description of a repository.
type hubModel struct {
	SHA      string `json:"sha"`
	Siblings []struct {
		Name   string `json:"rfilename"`
		Size   *int64 `json:"size"`
		BlobID string `json:"blobId"`
		LFS    *struct {
			SHA256 string `json:"sha256"`
			Size   int64  `json:"size"`
		} `json:"lfs"`
	} `json:"siblings"`
}

func (h *hub) list(ctx context.Context) (listing, error) {
	resp, err := h.get(ctx, h.endpoint+"/api/models/"+h.repo+"/revision/"+url.PathEscape(h.revision)+"?blobs=true", 0)
	if err != nil {
		return listing{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return listing{}, quiet(err)
	}
	if len(b) > maxAnswer {
		return listing{}, fault.Errorf(fault.FetchFailed, "the hub's description of %s is longer than %d bytes, which are allowed", h.repo, maxAnswer)
	}
	l, err := parseHub(b)
	if err != nil {
		return listing{}, fault.Errorf(fault.FetchFailed, "the hub's description of %s is refused: %w", h.repo, err)
	}
	h.version = l.version
	return l, nil
}

func parseHub(b []byte) (listing, error) {
	var m hubModel
	if err := json.Unmarshal(b, &m); err != nil {
		return listing{}, err
	}
	if !commit.MatchString(m.SHA) {
		return listing{}, fmt.Errorf("its commit is %.80q: it must be 40 hexadecimal digits", m.SHA)
	}
	l := listing{version: m.SHA}
	for _, s := range m.Siblings {
		f := file{name: s.Name}
		switch {
		case s.LFS != nil:
			f.size, f.sha256 = s.LFS.Size, s.LFS.SHA256
			if !sha256Hex.MatchString(f.sha256) {
				return listing{}, fmt.Errorf("the SHA-256 of %.200q is %.80q: it must be 64 hexadecimal digits", f.name, f.sha256)
			}
		case s.Size == nil:
			return listing{}, fmt.Errorf("it has no size of %.200q", f.name)
		default:
			f.size = *s.Size
			if commit.MatchString(s.BlobID) {
				f.blob = s.BlobID
			}
		}
		l.files = append(l.files, f)
	}
	return l, nil
}

func (h *hub) open(ctx context.Context, f file, offset int64) (io.ReadCloser, int64, error) {
	// Parts are escaped one by one: a name is not trusted to be a URL's.
	parts := strings.Split(path.Join(h.repo, "resolve", h.version, f.name), "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	resp, err := h.get(ctx, h.endpoint+"/"+strings.Join(parts, "/"), offset)
	if err != nil {
		return nil, 0, err
	}
	start, err := rangeStart(resp, f)
	if err != nil {
		_ = resp.Body.Close()
		return nil, 0, err
	}
	return resp.Body, start, nil
}
