package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string // part of the error; "" for none
	}{
		{nil, ""},
		{[]string{"--leader-elect", "--workers=64", "--probe-interval=1s", "--log-format=text", "--log-level=debug"}, ""},
		{[]string{"serve"}, `unexpected argument "serve": the operator takes flags only`},
		{[]string{"--nope"}, "flag provided but not defined: -nope"},
		{[]string{"--workers=0"}, "--workers 0: write 1 to 64"},
		{[]string{"--kube-api-qps=0"}, ""},
		{[]string{"--kube-api-qps=-1"}, "--kube-api-qps -1: write 0 to 10000"},
		{[]string{"--workers=x"}, "invalid value"},
		{[]string{"--probe-interval=1ms"}, "--probe-interval 1ms: write 1s or more"},
		{[]string{"--metrics-secure", "--metrics-cert-dir=/certs"}, ""},
		{[]string{"--metrics-cert-dir=/certs"}, "write --metrics-secure too"},
		{[]string{"--leader-election-id=team-a.inference.outrider.dev"}, ""},
		{[]string{"--leader-election-id="}, `--leader-election-id "": write a name`},
		{[]string{"--leader-election-id=Team A"}, `--leader-election-id "Team A": write a name`},
		{[]string{"--engine-image="}, "write an image name"},
		{[]string{"--engine-image=a b"}, "write an image name"},
		{[]string{"--cuda-engine-image="}, "write an image name"},
		{[]string{"--otlp-endpoint=https://collector:4318", "--otlp-sample-ratio=1"}, ""},
		{[]string{"--otlp-endpoint=collector:4318"}, `--otlp-endpoint "collector:4318": write an address like`},
		{[]string{"--otlp-sample-ratio=2"}, "--otlp-sample-ratio 2: write 0 to 1"},
		{[]string{"--log-level=loud"}, `--log-level "loud": write debug, info, warn or error`},
		{[]string{"--log-format=xml"}, `--log-format "xml": write json or text`},
	} {
		o, err := parse(tt.args, io.Discard)
		if err == nil {
			_, err = logger(o, io.Discard)
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v: error %v, want one with %q", tt.args, err, tt.want)
		}
	}
	if _, err := parse([]string{"-help"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-help: %v", err)
	}
}

func TestLogFormat(t *testing.T) {
	var b bytes.Buffer
	log, err := logger(&options{logLevel: "warn", logFormat: "json"}, &b)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("heard", "pod", "s-0")
	if got := b.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"heard","pod":"s-0"`) {
		t.Errorf("logged %s", got)
	}
}

func TestWatched(t *testing.T) {
	if m := watched(" , "); m != nil {
		t.Errorf("none named: %v", m)
	}
	m := watched("a, b")
	if _, ok := m["b"]; len(m) != 2 || !ok {
		t.Errorf("two named: %v", m)
	}
}
