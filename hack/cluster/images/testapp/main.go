// Command testapp is a small HTTP server to try a cluster with: it answers
// probes, tells who and where it is, fetches a URL, lists and writes files,
// and can be told to fail.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) == 1 {
		serve()
		return
	}
	if err := tool(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// tool is one of the small programs for kubectl exec, in an image with no shell.
func tool(name string, args []string) error {
	switch {
	case name == "get":
		for _, url := range args {
			if err := get(url); err != nil {
				return err
			}
		}
	case name == "cat":
		for _, name := range args {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			// All of it in memory: of an endless file, until the memory limit ends this.
			b, err := io.ReadAll(f)
			if err != nil {
				return err
			}
			if _, err := os.Stdout.Write(b); err != nil {
				return err
			}
		}
	case name == "write" && len(args) == 2:
		return os.WriteFile(args[0], []byte(args[1]+"\n"), 0o644)
	case name == "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case name == "webhook" && len(args) == 1:
		http.HandleFunc("/", review)
		return http.ListenAndServeTLS(":9443", args[0]+"/tls.crt", args[0]+"/tls.key", nil)
	case name == "fail":
		os.Exit(3)
	default:
		return fmt.Errorf("testapp %s: want get URL..., cat FILE..., write FILE TEXT, env, webhook FOLDER or fail", name)
	}
	return nil
}

func get(url string) error {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	c := http.Client{Timeout: 5 * time.Second}
	r, err := c.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", r.Status, strings.TrimSpace(string(b)))
	return nil
}

// review is a validating webhook that refuses objects labelled deny.
func review(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID    string
			Object struct {
				Metadata struct{ Labels map[string]string }
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, deny := review.Request.Object.Metadata.Labels["deny"]
	w.Header().Set("Content-Type", "application/json")
	err := json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"response": map[string]any{"uid": review.Request.UID, "allowed": !deny, "status": map[string]any{"message": "labelled deny"}},
	})
	if err != nil {
		log.Print(err)
	}
}

// serve answers probes, and says who and which version it is.
func serve() {
	start := time.Now()
	delay, _ := time.ParseDuration(os.Getenv("START_DELAY"))
	var ready, live atomic.Bool
	ready.Store(true)
	live.Store(true)
	name, _ := os.Hostname()
	mux := http.NewServeMux()
	say := func(ok func() bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if !ok() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprintln(w, r.URL.Path, ok())
		}
	}
	mux.HandleFunc("/startupz", say(func() bool { return time.Since(start) > delay }))
	mux.HandleFunc("/readyz", say(ready.Load))
	mux.HandleFunc("/livez", say(live.Load))
	mux.HandleFunc("/set", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Has("ready") {
			ready.Store(q.Get("ready") == "true")
		}
		if q.Has("live") {
			live.Store(q.Get("live") == "true")
		}
		fmt.Fprintln(w, "ready", ready.Load(), "live", live.Load())
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello from", name, os.Getenv("VERSION"))
	})
	s := &http.Server{Addr: ":8080", Handler: mux}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go func() {
		<-ctx.Done()
		log.Println("stopping")
		if err := s.Shutdown(context.Background()); err != nil {
			log.Print(err)
		}
	}()
	log.Println("testapp on", s.Addr, "as", name)
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}
