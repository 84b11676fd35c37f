// Package generate makes the files of the Helm chart that follow from others:
// dashboards from Go code, CRDs and roles from config, versions from VERSION,
// the README from the comments of values.yaml.
package generate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/outrider-dev/outrider/hack/chart/dashboards"
)

// Files are the generated files of the repository at root, by their path in it.
func Files(root string) (map[string][]byte, error) {
	const chart = "charts/outrider/"
	files := map[string][]byte{}
	for name, d := range dashboards.All() {
		out, err := d.JSON()
		if err != nil {
			return nil, err
		}
		files[chart+"dashboards/"+name+".json"] = out
	}
	crds, err := filepath.Glob(filepath.Join(root, "config/crd/*_*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(crds) == 0 {
		return nil, errors.New("no CRD in config/crd: make generate makes them")
	}
	for _, name := range crds {
		if files[chart+"files/crds/"+filepath.Base(name)], err = os.ReadFile(name); err != nil {
			return nil, err
		}
	}
	if files[chart+"files/rules.yaml"], err = rules(filepath.Join(root, "config/rbac")); err != nil {
		return nil, err
	}
	if files[chart+"Chart.yaml"], err = versions(root, chart+"Chart.yaml"); err != nil {
		return nil, err
	}
	values, err := os.ReadFile(filepath.Join(root, chart, "values.yaml"))
	if err != nil {
		return nil, err
	}
	if files[chart+"README.md"], err = readme(values); err != nil {
		return nil, err
	}
	return files, nil
}

// Write writes the files where they differ, and removes a dashboard or CRD that
// is generated no more.
func Write(root string) error {
	files, err := Files(root)
	if err != nil {
		return err
	}
	for name, content := range files {
		full := filepath.Join(root, name)
		if old, err := os.ReadFile(full); err == nil && bytes.Equal(old, content) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(full, content, 0o644); err != nil {
			return err
		}
	}
	for _, pattern := range []string{"charts/outrider/dashboards/*.json", "charts/outrider/files/crds/*.yaml"} {
		there, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, full := range there {
			name, err := filepath.Rel(root, full)
			if err != nil {
				return err
			}
			if files[filepath.ToSlash(name)] == nil {
				if err := os.Remove(full); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// versions is Chart.yaml with the version that the file VERSION has.
func versions(root, chart string) ([]byte, error) {
	version, err := os.ReadFile(filepath.Join(root, "VERSION"))
	if err != nil {
		return nil, err
	}
	v := strings.TrimSpace(string(version))
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(v) {
		return nil, fmt.Errorf("VERSION has %q: want a version as 1.2.3 or 1.2.3-rc.1", v)
	}
	raw, err := os.ReadFile(filepath.Join(root, chart))
	if err != nil {
		return nil, err
	}
	for _, key := range []string{"version", "appVersion"} {
		line := regexp.MustCompile(`(?m)^` + key + `: .*$`)
		if len(line.FindAll(raw, -1)) != 1 {
			return nil, fmt.Errorf("%s: want one line of the key %s", chart, key)
		}
		raw = line.ReplaceAll(raw, []byte(key+": "+v))
	}
	return raw, nil
}

// Rules are the permissions of the chart's roles.
type Rules struct {
	Cluster    []rbacv1.PolicyRule `json:"cluster"`    // of what is in no namespace
	Namespaced []rbacv1.PolicyRule `json:"namespaced"` // where servers are
	Own        []rbacv1.PolicyRule `json:"own"`        // in the operator's namespace
	Users      []User              `json:"users"`      // added to the built-in roles
}

// User is a role for people.
type User struct {
	Name   string              `json:"name"`
	Labels map[string]string   `json:"labels"`
	Rules  []rbacv1.PolicyRule `json:"rules"`
}

// clusterScoped are the resources that a Role of a namespace cannot give.
var clusterScoped = []string{"tokenreviews", "subjectaccessreviews", "nodes", "namespaces", "persistentvolumes", "storageclasses", "customresourcedefinitions", "priorityclasses", "runtimeclasses"}

// rules splits config's roles into what a namespace can give and what it cannot.
func rules(folder string) ([]byte, error) {
	var r Rules
	err := roles(filepath.Join(folder, "role.yaml"), func(role rbacv1.ClusterRole) error {
		if role.Kind == "Role" {
			r.Own = append(r.Own, role.Rules...)
			return nil
		}
		for _, rule := range role.Rules {
			in := 0
			for _, res := range rule.Resources {
				if slices.Contains(clusterScoped, res) {
					in++
				}
			}
			switch in {
			case 0:
				r.Namespaced = append(r.Namespaced, rule)
			case len(rule.Resources):
				r.Cluster = append(r.Cluster, rule)
			default:
				return fmt.Errorf("one rule has %v: write resources with and without a namespace apart", rule.Resources)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = roles(filepath.Join(folder, "user_roles.yaml"), func(role rbacv1.ClusterRole) error {
		r.Users = append(r.Users, User{Name: strings.TrimPrefix(role.Name, "outrider-"), Labels: role.Labels, Rules: role.Rules})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(r.Cluster) == 0 || len(r.Namespaced) == 0 || len(r.Own) == 0 || len(r.Users) == 0 {
		return nil, fmt.Errorf("%s: %d rules of the cluster, %d of namespaces, %d of its own, %d roles of users: want some of each",
			folder, len(r.Cluster), len(r.Namespaced), len(r.Own), len(r.Users))
	}
	out, err := yaml.Marshal(r)
	if err != nil {
		return nil, err
	}
	return append([]byte("# Made from config/rbac by hack/generate.sh.\n"), out...), nil
}

// roles reads the documents of a file; a Role reads as a ClusterRole.
func roles(name string, each func(rbacv1.ClusterRole) error) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for d := utilyaml.NewYAMLReader(newReader(raw)); ; {
		doc, err := d.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict(doc, &role); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if role.Kind == "" { // only comments
			continue
		}
		if err := each(role); err != nil {
			return fmt.Errorf("%s, %s: %w", name, role.Name, err)
		}
	}
}
