package fetch

import (
	"encoding/xml"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/engine/fault"
)

// s3Of is an object store with the files of a hub under models/m, and with
// connections that break at most bytes in.
func s3Of(t *testing.T, h *fakeHub, most int) *httptest.Server {
	type object struct {
		Key, ETag string
		Size      int
	}
	type result struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []object
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential=key/") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if strings.Trim(r.URL.Path, "/") == "bucket" {
			var l result
			for name, content := range h.files {
				if key := "models/m/" + name; strings.HasPrefix(key, r.URL.Query().Get("prefix")) {
					l.Contents = append(l.Contents, object{key, `"tag-` + h.sums[name] + `"`, len(content)})
				}
			}
			w.Header().Set("Content-Type", "application/xml")
			_ = xml.NewEncoder(w).Encode(l)
			return
		}
		content, ok := h.files[strings.TrimPrefix(r.URL.Path, "/bucket/models/m/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		h.send(w, r, content, most)
	}))
	t.Cleanup(s.Close)
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	return s
}

func TestS3(t *testing.T) {
	h := newFakeHub(t)
	s3Of(t, h, 70_000)
	opts, p := h.options(t.TempDir())
	s, err := Open(t.Context(), "s3://bucket/models/m/", opts)
	if err != nil {
		t.Fatal(err)
	}
	h.same(t, s)
	sent := h.sent.Load()
	if p.done.Load() != p.total.Load() || sent != p.total.Load() {
		t.Errorf("progress has %d of %d bytes, %d were sent: want each once", p.done.Load(), p.total.Load(), sent)
	}
	if s, err = Open(t.Context(), "s3://bucket/models/m", opts); err != nil || h.sent.Load() != sent {
		t.Errorf("a model in the cache is downloaded: %v", err)
	}
	h.same(t, s)
}

func TestS3Refusals(t *testing.T) {
	h := newFakeHub(t)
	s3Of(t, h, 1<<20)
	for _, c := range []struct {
		ref    string
		key    string
		reason fault.Reason
		says   string
	}{
		{"s3://bucket/other", "key", fault.ModelNotFound, "check the prefix"},
		{"s3://bucket/models/m", "stranger", fault.Unauthorized, "AWS_ACCESS_KEY_ID"},
		{"s3://none-there/m", "key", fault.ModelNotFound, "check bucket"},
		{"s3://", "key", fault.InvalidConfig, "s3://BUCKET/PREFIX"},
		{"s3://../m", "key", fault.InvalidConfig, "s3://BUCKET/PREFIX"},
	} {
		t.Setenv("AWS_ACCESS_KEY_ID", c.key)
		opts, _ := h.options(t.TempDir())
		if _, err := Open(t.Context(), c.ref, opts); err == nil || fault.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v with reason %s: want %s saying %q", c.ref, err, fault.ReasonOf(err), c.reason, c.says)
		}
	}
}
