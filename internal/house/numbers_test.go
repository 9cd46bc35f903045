package house

import (
	"fmt"
	"path/filepath"
	"testing"
)

// Limits of numbers that must not grow: the last values. If a change makes a number smaller, lower its
// limit.
const (
	maxPackageLines  = 5885 // of a package, without tests and generated files
	maxCycleLines    = 2925 // of files of one package that all need each other
	maxMethods       = 40   // of a type
	maxFields        = 30   // of a struct
	maxLongLines     = 0    // that have more than maxColumns
	maxLongestColumn = 110  // of a line
)

// maxColumns is the maximum width of a line of code; a tab counts as four columns.
const maxColumns = 110

// TestNumbers prints the numbers that show whether a stranger can find the way, and fails if one grows.
func TestNumbers(t *testing.T) {
	var packageLines, cycle, methods, fields largest
	long, longest := 0, largest{}
	for _, s := range sources(t) {
		total := 0
		for _, lines := range s.lines {
			total += lines
		}
		packageLines.note(s.name, total)
		files, lines := s.cycle()
		cycle.note(fmt.Sprintf("%s, %d files", s.name, files), lines)
		for name, n := range s.methods {
			methods.note(s.name+"."+name, n)
		}
		for name, n := range s.fields {
			fields.note(s.name+"."+name, n)
		}
		for path := range s.lines {
			more, widest := columns(t, path)
			long += more
			longest.note(s.name+"/"+filepath.Base(path), widest)
		}
	}
	for _, one := range []struct {
		what  string
		found largest
		limit int
	}{
		{"lines of the largest package", packageLines, maxPackageLines},
		{"lines of the largest cycle of files", cycle, maxCycleLines},
		{"methods of the largest type", methods, maxMethods},
		{"fields of the largest struct", fields, maxFields},
		{"lines that are too long", largest{"all packages", long}, maxLongLines},
		{"columns of the longest line", longest, maxLongestColumn},
	} {
		t.Logf("%6d %s (%s), at most %d", one.found.size, one.what, one.found.name, one.limit)
		if one.found.size > one.limit {
			t.Errorf("%s: %d in %s, and %d is the limit", one.what, one.found.size, one.found.name, one.limit)
		}
	}
}

// largest is the largest of the things noted.
type largest struct {
	name string
	size int
}

func (l *largest) note(name string, size int) {
	if size > l.size || size == l.size && name < l.name {
		l.name, l.size = name, size
	}
}
