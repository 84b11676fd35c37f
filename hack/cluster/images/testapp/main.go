// Command testapp is a small HTTP server to try a cluster with: it answers
// probes, tells who and where it is, fetches a URL, lists and writes files,
// and can be told to fail.
package main

import (
	"context"
	"encoding/json"
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
	if len(os.Args) > 1 { // small tools, for kubectl exec in an image with no shell
		switch os.Args[1] {
		case "get":
			for _, url := range os.Args[2:] {
				c := http.Client{Timeout: 5 * time.Second}
				r, err := c.Get(url)
				if err != nil {
					fmt.Println("error:", err)
					os.Exit(1)
				}
				b, _ := io.ReadAll(r.Body)
				fmt.Printf("%s %s\n", r.Status, strings.TrimSpace(string(b)))
			}
		case "cat":
			for _, f := range os.Args[2:] {
				b, err := os.ReadFile(f)
				if err != nil {
					fmt.Println("error:", err)
					os.Exit(1)
				}
				os.Stdout.Write(b)
			}
		case "ls":
			entries, err := os.ReadDir(os.Args[2])
			fmt.Println(err)
			for _, e := range entries {
				fmt.Println(e)
			}
		case "write":
			if err := os.WriteFile(os.Args[2], []byte(os.Args[3]+"\n"), 0o644); err != nil {
				fmt.Println("error:", err)
				os.Exit(1)
			}
		case "env":
			fmt.Println(strings.Join(os.Environ(), "\n"))
		case "webhook": // a validating webhook that refuses objects labelled deny
			http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
				var review struct {
					Request struct {
						UID    string
						Object struct {
							Metadata struct{ Labels map[string]string }
						}
					}
				}
				if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
					log.Print(err)
				}
				_, deny := review.Request.Object.Metadata.Labels["deny"]
				w.Header().Set("Content-Type", "application/json")
				json.NewEncoder(w).Encode(map[string]any{
					"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
					"response": map[string]any{"uid": review.Request.UID, "allowed": !deny, "status": map[string]any{"message": "labelled deny"}},
				})
			})
			log.Fatal(http.ListenAndServeTLS(":9443", os.Args[2]+"/tls.crt", os.Args[2]+"/tls.key", nil))
		case "fail":
			os.Exit(3)
		}
		return
	}
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
		s.Shutdown(context.Background())
	}()
	log.Println("testapp on", s.Addr, "as", name)
	if err := s.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}
