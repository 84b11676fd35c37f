package server

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// The page is on the admin port alone, and needs nothing from elsewhere.
func TestPage(t *testing.T) {
	in := sharedInstance(t)
	resp, b := do(t, http.MethodGet, in.admin.URL+"/", "", nil)
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("status %d, %v", resp.StatusCode, resp.Header)
	}
	if found := regexp.MustCompile(`(src|href)=|@import|url\(|//[a-z]+\.[a-z]`).FindString(strings.ReplaceAll(string(b), "http://www.w3.org/", "")); found != "" {

		t.Errorf("the page loads something: %s", found)
	}
	for _, path := range regexp.MustCompile(`(?:get|fetch)\("([a-z0-9_/]+)`).FindAllSubmatch(b, -1) {
		if resp, b := do(t, http.MethodGet, in.admin.URL+"/"+string(path[1]), "", nil); resp.StatusCode != http.StatusOK {
			t.Errorf("%s, which the page reads: status %d, %s", path[1], resp.StatusCode, b)
		}
	}
	if resp, _ := do(t, http.MethodGet, in.public.URL+"/", "", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("on the public port: status %d", resp.StatusCode)
	}
	if resp, _ := do(t, http.MethodGet, in.admin.URL+"/nowhere", "", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("another path: status %d", resp.StatusCode)
	}
}
