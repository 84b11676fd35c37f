package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Every linked module has a licence that the project takes, and the page says which.
func TestReportIsUpToDate(t *testing.T) {
	modules, err := linked(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(modules) < 30 {
		t.Fatalf("only %d modules are linked", len(modules))
	}
	var b strings.Builder
	if err := report(&b, modules); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/licenses.md")
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(page) {
		t.Error(`docs/licenses.md is not up to date: run "go run ./hack/licenses > docs/licenses.md"`)
	}
	b.Reset()
	if err := notices(&b, modules); err != nil {
		t.Fatal(err)
	}
	for _, m := range modules {
		if !strings.Contains(b.String(), "\n"+strings.TrimSpace(m.path+" "+m.version)+": ") {
			t.Errorf("the notices lack %s", m.path)
		}
	}
}

func TestClassify(t *testing.T) {
	const bsd = "Redistribution and use in source and binary\nforms, with or without modification, are permitted"
	for text, want := range map[string][]string{
		"Apache License\n   Version 2.0, January 2004":                       {"Apache-2.0"},
		"// Permission is hereby granted, free of\n// charge, to any person": {"MIT"},
		bsd:                                  {"BSD-2-Clause"},
		bsd + "\n * Neither the name of the": {"BSD-3-Clause"},
		"Permission to use, copy, modify, and/or distribute this software for any\npurpose":             {"ISC"},
		"Mozilla Public License Version 2.0":                                                            {"MPL-2.0"},
		"GNU LESSER GENERAL PUBLIC LICENSE":                                                             {"LGPL"},
		"Licensed under the Apache License, Version 2.0.\nPermission is hereby granted, free of charge": {"Apache-2.0", "MIT"},
		"All rights reserved.": nil,
	} {
		if got := classify(text); !slices.Equal(got, want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

func TestJudge(t *testing.T) {
	mit := "Permission is hereby granted, free of charge"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string // part of the error; "" for none
	}{
		{"one", map[string]string{"LICENSE": mit}, ""},
		{"with a notice", map[string]string{"LICENSE": mit, "NOTICE": "Copyright somebody"}, ""},
		{"a notice alone", map[string]string{"NOTICE": "Copyright somebody"}, "it has no file with a licence"},
		{"none", nil, "it has no file with a licence"},
		{"another", map[string]string{"COPYING": "GNU General Public License"}, "COPYING is GPL: the project takes Apache-2.0"},
		{"one that is not known", map[string]string{"LICENSE": mit, "a/LICENSE": "Ask me."}, "a/LICENSE is no licence that is known"},
	} {
		err := (&module{path: "example.com/m", version: "v1.0.0", files: tt.files}).judge()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.want)
		}
	}
}
