package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// guardedPackages are those whose goroutines run in the agent and do what a peer or a container
// makes them do.
var guardedPackages = []string{
	".", "../access", "../admission", "../attachment", "../cluster", "../cluster/measure", "../control",
	"../criu/relief", "../departure", "../envelopes", "../forecast", "../frozen", "../gc", "../inventory",
	"../journal", "../journal/rebuild", "../latestart", "../lease", "../location", "../migrate",
	"../node/containers", "../node/data", "../node/disk", "../node/rpc", "../node/supervisor",
	"../placement/controller", "../reserve", "../residual", "../restart", "../sampling", "../staging",
	"../switchover", "../transfer/anew", "../transfer/dump", "../transfer/files", "../transfer/kept",
	"../transfer/layers", "../transfer/link", "../transfer/memory/arriving", "../transfer/memory/leaving",
	"../transfer/memory/precopy", "../transfer/memory/push", "../transfer/memory/rounds",
	"../transfer/progress", "../transfer/proof", "../transfer/state", "../transfer/volumes",
}

// lasting are the functions whose goroutines serve for as long as the agent does: it is better to start it
// again, as its unit does, than to go on without one of them.
var lasting = []string{"serveAll"}

// TestGoroutinesAreGuarded: a panic in a goroutine that nothing recovers ends the agent, and with it all
// migrations. So each goroutine starts by way of guarded or
// guard.Logged, or what it does is in guard.Do.
func TestGoroutinesAreGuarded(t *testing.T) {
	var names []string
	for _, dir := range guardedPackages {
		found, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(found), err)
		}
		names = append(names, found...)
	}
	checked := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range goroutines(file) {
			checked++
			if !isGuarded(call) {
				t.Errorf("%s: a panic in this goroutine would end the agent: use guarded, guard.Logged or "+
					"guard.Do", set.Position(call.Pos()))
			}
		}
	}
	if checked == 0 {
		t.Error("no goroutine was found")
	}
}

// goroutines are what go statements call, and what a WaitGroup's Go is given.
func goroutines(file *ast.File) (found []ast.Expr) {
	for _, declaration := range file.Decls {
		function, is := declaration.(*ast.FuncDecl)
		if is && strings.Contains(strings.Join(lasting, " "), function.Name.Name) {
			continue
		}
		ast.Inspect(declaration, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.GoStmt:
				found = append(found, node.Call.Fun)
			case *ast.CallExpr:
				if of, method := selected(node.Fun); method == "Go" && of != "guard" {
					found = append(found, node.Args...)
				}
			}
			return true
		})
	}
	return found
}

func isGuarded(what ast.Expr) (is bool) {
	ast.Inspect(what, func(node ast.Node) bool {
		if call, isCall := node.(*ast.CallExpr); isCall {
			of, method := selected(call.Fun)
			is = is || strings.EqualFold(method, "guarded") ||
				of == "guard" && (method == "Do" || method == "Logged")
		}
		return !is
	})
	return is
}

func selected(what ast.Expr) (of, name string) {
	selector, is := what.(*ast.SelectorExpr)
	if !is {
		return "", ""
	}
	if identifier, is := selector.X.(*ast.Ident); is {
		of = identifier.Name
	}
	return of, selector.Sel.Name
}
