package house

import (
	"bufio"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// source holds the counts of a package's own code, without tests and generated files.
type source struct {
	name    string
	lines   map[string]int             // of each file
	needs   map[string]map[string]bool // the files of the package that a file needs
	methods map[string]int             // of each type
	fields  map[string]int             // of each struct
}

// sources reads and type-checks all packages except those of tests.
func sources(t *testing.T) (all []source) {
	t.Helper()
	deps, err := list()
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for _, p := range deps {
		exports[p.ImportPath] = p.Export
	}
	set := token.NewFileSet()
	imports := importer.ForCompiler(set, "gc",
		func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.name(), "test/") {
			all = append(all, read(t, set, imports, p))
		}
	}
	return all
}

func read(t *testing.T, set *token.FileSet, imports types.Importer, p listed) source {
	t.Helper()
	s := source{p.name(), map[string]int{}, map[string]map[string]bool{}, map[string]int{}, map[string]int{}}
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, file)
		if !ast.IsGenerated(file) {
			s.lines[path] = set.File(file.Pos()).LineCount()
			s.count(file)
		}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{}}
	checked, err := (&types.Config{Importer: imports}).Check(p.ImportPath, set, parsed, info)
	if err != nil {
		t.Fatal(err)
	}
	for used, object := range info.Uses {
		if object.Pkg() == checked && object.Pos().IsValid() {
			s.need(set.Position(used.Pos()).Filename, set.Position(object.Pos()).Filename)
		}
	}
	return s
}

// need notes that a file needs another one.
func (s source) need(from, to string) {
	if from == to || s.lines[from] == 0 || s.lines[to] == 0 {
		return
	}
	if s.needs[from] == nil {
		s.needs[from] = map[string]bool{}
	}
	s.needs[from][to] = true
}

// count counts methods and fields.
func (s source) count(file *ast.File) {
	for _, declared := range file.Decls {
		switch d := declared.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				s.methods[receiver(d.Recv.List[0].Type)]++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if named, is := spec.(*ast.TypeSpec); is {
					if structure, is := named.Type.(*ast.StructType); is {
						s.fields[named.Name.Name] = structure.Fields.NumFields()
					}
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(of ast.Expr) string {
	switch e := of.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// cycle returns the largest set of files in which each needs all others, directly or indirectly.
func (s source) cycle() (files, lines int) {
	for from := range s.lines {
		there := s.reached(from)
		n, sum := 0, 0
		for to := range there {
			if s.reached(to)[from] {
				n, sum = n+1, sum+s.lines[to]
			}
		}
		if sum > lines {
			files, lines = n, sum
		}
	}
	return files, lines
}

// reached returns the files that a file needs, itself among them if it is in a cycle.
func (s source) reached(from string) map[string]bool {
	there, next := map[string]bool{}, []string{from}
	for len(next) > 0 {
		at := next[0]
		next = next[1:]
		for to := range s.needs[at] {
			if !there[to] {
				there[to] = true
				next = append(next, to)
			}
		}
	}
	return there
}

// columns counts the overlong lines of a file, and the columns of its longest line.
func columns(t *testing.T, path string) (long, longest int) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		wide := len([]rune(strings.ReplaceAll(lines.Text(), "\t", "    ")))
		if longest = max(longest, wide); wide > maxColumns {
			long++
		}
	}
	return long, longest
}
