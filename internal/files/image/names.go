package image

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// localRegistry is the registry part of images that were built here. A short name means such an
// image if there is no other of this name, as it does for Podman.
const localRegistry = "localhost"

// canonicalName returns the stored form of a reference: with its registry, repository and tag or digest.
func canonicalName(ref string) (string, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return "", fmt.Errorf("%q is not an image's name: %w", ref, err)
	}
	return strings.Replace(parsed.Name(), name.DefaultRegistry+"/", "docker.io/", 1), nil
}

// CheckName refuses strings that are not an image's name.
func CheckName(name string) error {
	_, err := canonicalName(name)
	// a registry's name may have dots, and a name becomes a path
	if err == nil && strings.Contains(name, "..") {
		err = fmt.Errorf("%q is not an image's name", name)
	}
	return err
}

// IsTagged reports whether a name is complete: with its registry, repository and tag.
func IsTagged(name string) bool {
	canonical, err := canonicalName(name)
	return err == nil && canonical == name && !strings.Contains(name, "@") && CheckName(name) == nil
}

// FamiliarName omits the parts that users do not write.
func FamiliarName(canonical string) string {
	short := strings.TrimPrefix(canonical, "docker.io/")
	return strings.TrimPrefix(short, "library/")
}

// candidates returns the stored names that a reference may mean, in order.
func candidates(ref string) []string {
	var all []string
	if canonical, err := canonicalName(ref); err == nil {
		all = append(all, canonical)
	}
	if !strings.Contains(ref, "/") {
		if local, err := canonicalName(localRegistry + "/" + ref); err == nil {
			all = append(all, local)
		}
	}
	return all
}

// prefixPattern matches beginnings of IDs: at least 4 digits, so that a mistyped name matches none.
var prefixPattern = regexp.MustCompile(`^sha256:[0-9a-f]{4,64}$`)
