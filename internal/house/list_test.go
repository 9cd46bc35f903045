package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// module is the import path of the module.
const module = "github.com/godwit/godwit/"

// listed is a package as "go list" shows it.
type listed struct {
	ImportPath, Dir, Export            string
	DepOnly                            bool
	GoFiles                            []string
	Imports, TestImports, XTestImports []string
}

// name of a package in the module.
func (p listed) name() string { return strings.TrimPrefix(p.ImportPath, module) }

// list returns the packages of the module and their dependencies.
var list = sync.OnceValues(func() ([]listed, error) {
	cmd := exec.Command("go", "list", "-export", "-deps",
		"-json=ImportPath,Dir,Export,DepOnly,GoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = "../.."
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New(errs.String())
	}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var one listed
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
})

// packages returns the packages of the module.
func packages(t *testing.T) (own []listed) {
	t.Helper()
	all, err := list()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if !one.DepOnly {
			own = append(own, one)
		}
	}
	return own
}
