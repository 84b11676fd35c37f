package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outrider-dev/outrider/engine/fault"
	"github.com/outrider-dev/outrider/engine/fetch"
	"github.com/outrider-dev/outrider/engine/telemetry"
)

// fetchOptions are the flags of fetch.
type fetchOptions struct {
	options       // those of serve that fetch has too
	draftOptional bool
	terminal      string // file
}

func fetchCommand(stdout, stderr io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fetch",
		Short: "Download a model into a cache folder, and end",
		Long: `Download the model of hf:// or s3:// into --download-dir, unless it is there,
and print where it lies in it. A download that was broken off goes on where it
was. Until it ends, /progress on the admin port says how far it is.

Each flag can also be set by an environment variable, as those of serve.`,
		Example: `  outrider-engine fetch --model hf://OWNER/NAME --download-dir /models`,
		Args:    cobra.NoArgs,
	}
	o := newFetchOptions(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.named(o.fetch(cmd.Context(), stdout, stderr)) }
	return cmd
}

func newFetchOptions(f *pflag.FlagSet) *fetchOptions {
	o := &fetchOptions{options: options{flags: f, env: map[string]string{}}}
	c := &o.engine
	f.SortFlags = false
	f.StringVar(&c.Model, "model", "", "model `reference`: hf://OWNER/NAME[@REVISION] or s3://BUCKET/PREFIX; anything else needs no download")
	f.StringVar(&c.DraftModel, "draft-model", "", "`reference` of the draft head or model, likewise")
	f.BoolVar(&o.draftOptional, "draft-optional", false, "end well without the draft if its source says that it is not there or not to be had")
	f.StringVar(&c.DownloadDir, "download-dir", "", "`folder` to download into; by default outrider/models in the user's cache folder")
	f.StringVar(&o.hubTokenFile, "hf-token-file", "", "`file` with the access token of hf://; by default HF_TOKEN is the token")
	f.StringVar(&o.adminHost, "admin-host", "127.0.0.1", "`address` of the admin port")
	f.IntVar(&o.adminPort, "admin-port", 8001, "admin port: /progress and /livez; 0 for any free port")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.terminal, "termination-log", "", "`file` for the JSON line that says where the files are, or why there are none")
	return o
}

// fetched is what fetch prints: folders from --download-dir on, empty for what
// was not to be downloaded.
type fetched struct {
	Model      string          `json:"model"`
	Draft      string          `json:"draft"`
	DraftError json.RawMessage `json:"draft_error,omitempty"` // as in the termination log; with --draft-optional
}

// fetch downloads and ends. A stop from outside is an error: the files are not
// all there.
func (o *fetchOptions) fetch(ctx context.Context, stdout, stderr io.Writer) error {
	if err := o.fromEnv(os.LookupEnv); err != nil {
		return err
	}
	level, err := o.level()
	if err != nil {
		return err
	}
	c := &o.engine
	if !fetch.IsRemote(c.Model) && !fetch.IsRemote(c.DraftModel) {
		return invalid("--model is %q and --draft-model %q: one of them must be of hf:// or s3://, there is nothing else to fetch", c.Model, c.DraftModel)
	}
	if o.adminPort < 0 || o.adminPort > 65535 {
		return invalid("--admin-port is %d: allowed is 1 to 65535, or 0 for any free port", o.adminPort)
	}
	if err := o.readHub(os.Getenv); err != nil {
		return err
	}
	log := o.logger(stderr, level)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	progress := telemetry.NewProgress(1, time.Now)
	closeAdmin, err := o.admin(ctx, progress, log)
	if err != nil {
		return err
	}
	defer closeAdmin()
	done, err := o.both(ctx, progress, log)
	if ctx.Err() != nil {
		return fault.Errorf(fault.FetchFailed, "told to stop before all files were there: the next fetch goes on from here")
	}
	if err != nil {
		return err
	}
	line, err := json.Marshal(done)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if o.terminal != "" {
		if err := os.WriteFile(o.terminal, line, 0o644); err != nil {
			return fault.Errorf(fault.InvalidConfig, "--termination-log: %w", err)
		}
	}
	_, err = stdout.Write(line)
	return err
}

// both downloads the model and then the draft.
func (o *fetchOptions) both(ctx context.Context, progress *telemetry.Progress, log *slog.Logger) (f fetched, err error) {
	c := &o.engine
	one := func(ref string) (string, error) {
		if !fetch.IsRemote(ref) {
			return "", nil
		}
		return fetch.Download(ctx, ref, fetch.Options{
			Dir: c.DownloadDir, Endpoint: c.HubEndpoint, Token: c.HubToken, Log: log,
			Expect: progress.ExpectFetch, Advance: progress.AdvanceFetch, Done: progress.FetchDone,
		})
	}
	if f.Model, err = one(c.Model); err != nil {
		return f, err
	}
	f.Draft, err = one(c.DraftModel)
	if reason := fault.ReasonOf(err); err != nil && o.draftOptional && (reason == fault.ModelNotFound || reason == fault.Unauthorized || reason == fault.InvalidConfig) {
		log.Warn("going on without the draft", "reason", reason, "error", err)
		f.DraftError, err = fault.Message(err), nil
	}
	return f, err
}

// admin serves /progress and /livez until it is closed.
func (o *fetchOptions) admin(ctx context.Context, progress *telemetry.Progress, log *slog.Logger) (closed func(), err error) {
	l, err := listen(ctx, "admin-port", cmp.Or(o.adminHost, "127.0.0.1"), o.adminPort)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // a client that went away knows
	})
	mux.HandleFunc("GET /progress", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(progress.Snapshot()) // likewise
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("progress is not served any more", "error", err)
		}
	}()
	log.Info("fetching", "admin_url", fmt.Sprintf("http://%s", l.Addr()), "version", buildVersion())
	return func() { _ = s.Close() }, nil // the process ends
}
