package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	linkPattern    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	headingPattern = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	anchorPattern  = regexp.MustCompile(`[^\pL\pN_ -]`)
)

// TestLinks follows the links between the project's Markdown pages, with their anchors.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, link := range linkPattern.FindAllStringSubmatch(readPage(t, page), -1) {
			path, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link to %s: %v", page, link[1], err)
			} else if anchor != "" && !anchors(readPage(t, target))[anchor] {
				t.Errorf("%s: %s has no heading for #%s", page, target, anchor)
			}
		}
	}
}

// pages returns the Markdown files at the top and below docs.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// anchors returns the anchors that GitHub makes of a page's headings.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, heading := range headingPattern.FindAllStringSubmatch(page, -1) {
		text := anchorPattern.ReplaceAllString(strings.ToLower(heading[1]), "")
		all[strings.ReplaceAll(text, " ", "-")] = true
	}
	return all
}
