// Program compatibility writes tables of the engines' movable properties, from the conformance suite's
// findings, into a document:
//
//	compatibility DIRECTORY FILE
//
// DIRECTORY has the suite's findings, and FILE the marks between which the tables are.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The marks.
const (
	begin = "<!-- compatibility: written by make compatibility -->"
	end   = "<!-- compatibility: end -->"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: compatibility DIRECTORY FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "compatibility:", err)
		os.Exit(1)
	}
}

// findings are the suite's findings about one version of an engine.
type findings struct {
	Engine     string            `json:"engine"`
	Version    string            `json:"version"`
	Kernel     string            `json:"kernel"`
	Modes      map[string]bool   `json:"modes"`
	Kept       map[string]bool   `json:"connections"`
	Properties map[string]string `json:"properties"`
}

func write(directory, file string) error {
	all, err := read(directory)
	if err != nil {
		return err
	}
	document, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(document), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s has not the marks %s and %s", file, begin, end)
	}
	return os.WriteFile(file, []byte(before+begin+"\n"+tables(all)+end+after), 0o644)
}

// order is the order of the engines in the tables.
var order = []string{"", "docker", "podman", "containerd", "lxc"}

func read(directory string) ([]findings, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []findings
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var one findings
		if err := json.Unmarshal(data, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no findings", directory)
	}
	slices.SortFunc(all, func(a, b findings) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Engine), slices.Index(order, b.Engine)),
			cmp.Compare(a.Version, b.Version))
	})
	return all, nil
}

func (f findings) title() string {
	names := map[string]string{"": "Godwit's own", "docker": "Docker", "podman": "Podman", "lxc": "LXC"}
	version, _, _ := strings.Cut(f.Version, "+") // without a distribution's suffix
	version, _, _ = strings.Cut(version, "~")
	return strings.TrimSpace(cmp.Or(names[f.Engine], f.Engine) + " " + version)
}

// word returns the word for a finding.
func word(found map[string]bool, key string) string {
	is, tried := found[key]
	switch {
	case !tried:
		return "–"
	case is:
		return "yes"
	}
	return "**fails**"
}

func tables(all []findings) string {
	modes := []string{"cold", "pre-copy", "post-copy", "hybrid"}
	var text strings.Builder
	fmt.Fprintf(&text, "| engine | %s | TCP connections go on |\n|---|%s---|\n", strings.Join(modes, " | "),
		strings.Repeat("---|", len(modes)))
	for _, one := range all {
		fmt.Fprintf(&text, "| %s |", one.title())
		for _, mode := range modes {
			fmt.Fprintf(&text, " %s |", word(one.Modes, mode))
		}
		fmt.Fprintf(&text, " %s |\n", kept(one, modes))
	}
	text.WriteString("\n| what comes along |")
	for _, one := range all {
		fmt.Fprintf(&text, " %s |", one.title())
	}
	fmt.Fprintf(&text, "\n|---|%s\n", strings.Repeat("---|", len(all)))
	for _, name := range properties(all) {
		fmt.Fprintf(&text, "| %s |", name)
		for _, one := range all {
			fmt.Fprintf(&text, " %s |",
				cmp.Or(map[string]string{"moves": "yes", "fails": "**fails**"}[one.Properties[name]],
					one.Properties[name], "–"))
		}
		text.WriteString("\n")
	}
	kernel, _, _ := strings.Cut(all[0].Kernel, "-")
	fmt.Fprintf(&text, "\nFound on Linux %s. –: containers of this engine have no such thing, or it was "+
		"not asked for it.\n", kernel)
	return text.String()
}

// kept reports whether connections survive in all modes in which containers move, or in which modes they
// do.
func kept(one findings, modes []string) string {
	var in []string
	for _, mode := range modes {
		if one.Kept[mode] {
			in = append(in, mode)
		}
	}
	switch {
	case len(one.Kept) == 0:
		return "–: its networks do not move"
	case len(in) == len(modes):
		return "yes"
	}
	return cmp.Or(strings.Join(in, ", "), "**no**")
}

// properties returns all properties in the findings.
func properties(all []findings) []string {
	names := map[string]bool{}
	for _, one := range all {
		for name := range one.Properties {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
