package archtest

import (
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule is one thing that the module promises about its own sources.
type rule struct {
	name  string
	check func(*tree) []finding
}

var rules = []rule{
	{"root-imports", rootImports},
	{"store-imports", storeImports},
	{"kakuteihttp-imports", httpImports},
	{"proxy-console-imports", frontImports},
	{"process-state", processState},
	{"open-databases", openDatabases},
	{"no-init", noInit},
	{"package-names", packageNames},
	{"file-length", fileLength},
	{"sql-place", sqlPlace},
	{"doc-comments", docComments},
}

// maxLines is where a file holds more than one concept.
const maxLines = 450

var stores = []string{"memstore", "sqlitestore", "pgstore", "mysqlstore"}

// rootImports: whoever imports the engine must download nothing else.
func rootImports(tr *tree) []finding {
	const coalesce = "internal/coalesce"
	var out []finding
	for _, src := range tr.files {
		if src.test || (src.dir != "." && src.dir != coalesce) {
			continue
		}
		for _, im := range src.imports() {
			own, ok := tr.own(im.path)
			if standard(im.path) || (ok && own == coalesce && src.dir == ".") {
				continue
			}
			what := "the root package"
			if src.dir == coalesce {
				what = coalesce + ", which the root package imports,"
			}
			out = append(out, tr.at(src, im.spec.Pos(),
				"%s imports %q: it must need nothing but the standard library; take an interface instead, or move the code to the package that owns the dependency", what, im.path))
		}
	}
	return out
}

// storeImports: each store can be taken alone.
func storeImports(tr *tree) []finding {
	var out []finding
	for _, store := range stores {
		out = append(out, tr.ownImports(store, []string{store, "internal"},
			"a store imports the root package and internal ones only; copy the few lines, or move what all stores need to internal/")...)
	}
	return out
}

// httpImports: the middleware works on any store.
func httpImports(tr *tree) []finding {
	return tr.ownImports("kakuteihttp", []string{"kakuteihttp", "internal"},
		"kakuteihttp works on any store, through the root package's interfaces; let the caller pass what is needed")
}

// frontImports: which store there is, cmd decides.
func frontImports(tr *tree) []finding {
	var out []finding
	for _, dir := range []string{"proxy", "console"} {
		out = append(out, tr.ownImports(dir, []string{dir, "kakuteihttp", "internal"},
			"proxy and console are given their store by cmd/; take a kakutei.Store or an optional interface of it instead")...)
	}
	return out
}

// ownImports reports the packages of this module that the ones in dir import,
// themselves or through others, outside the root package and allowed. Tests may
// import what they like.
func (tr *tree) ownImports(dir string, allowed []string, todo string) []finding {
	graph := tr.graph()
	refused := func(to string) bool { return to != "." && !within(to, allowed...) }
	var out []finding
	for _, src := range tr.files {
		if src.test || !within(src.dir, dir) {
			continue
		}
		for _, im := range src.imports() {
			first, ok := tr.own(im.path)
			if !ok {
				continue
			}
			for _, chain := range graph.reach(first, refused) {
				last := chain[len(chain)-1]
				if !refused(last) {
					continue
				}
				via := ""
				if len(chain) > 1 {
					via = " (through " + strings.Join(chain[:len(chain)-1], ", ") + ")"
				}
				out = append(out, tr.at(src, im.spec.Pos(), "%s imports %s%s: %s", src.dir, last, via, todo))
			}
		}
	}
	return out
}

// graph maps the directory of each package to those of the module's packages
// that its non-test files import.
type graph map[string][]string

func (tr *tree) graph() graph {
	g := graph{}
	for _, src := range tr.files {
		if src.test {
			continue
		}
		for _, im := range src.imports() {
			if to, ok := tr.own(im.path); ok && !slices.Contains(g[src.dir], to) {
				g[src.dir] = append(g[src.dir], to)
			}
		}
	}
	return g
}

// reach returns a shortest way to each package that from leads to, with from
// itself. It does not look behind the ones that are refused.
func (g graph) reach(from string, refused func(string) bool) [][]string {
	out := [][]string{{from}}
	seen := map[string]bool{from: true}
	for i := 0; i < len(out); i++ {
		chain := out[i]
		last := chain[len(chain)-1]
		if refused(last) {
			continue
		}
		for _, to := range g[last] {
			if !seen[to] {
				seen[to] = true
				out = append(out, append(slices.Clone(chain), to))
			}
		}
	}
	return out
}

// uses reports each mention of a name of a package, called or not: a function
// handed on is used as well. names is asked with the import path.
func (tr *tree) uses(src *source, names func(importPath, name string) bool, text string) []finding {
	paths := map[string]string{}
	var out []finding
	for _, im := range src.imports() {
		paths[im.name] = im.path
		// A dot import hides from this check what it uses.
		if im.name == "." && names(im.path, "") {
			out = append(out, tr.at(src, im.spec.Pos(), "%q is imported with a dot: %s", im.path, text))
		}
	}
	ast.Inspect(src.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && names(paths[id.Name], sel.Sel.Name) {
			out = append(out, tr.at(src, sel.Pos(), "%s.%s: %s", id.Name, sel.Sel.Name, text))
		}
		return true
	})
	return out
}

// processNames are the ways to the environment and out of the process.
var processNames = map[string][]string{
	"os":      {"Exit", "Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv", "Clearenv"},
	"syscall": {"Exit", "Getenv", "Environ", "Setenv", "Unsetenv", "Clearenv"},
	"log":     {"Fatal", "Fatalf", "Fatalln"},
}

// processState: a library returns errors, and is told what it needs to know.
func processState(tr *tree) []finding {
	var out []finding
	for _, src := range tr.files {
		if src.test || within(src.dir, "cmd", "internal/dbtest") {
			continue
		}
		out = append(out, tr.uses(src, func(importPath, name string) bool {
			known, ok := processNames[importPath]
			return ok && (name == "" || slices.Contains(known, name))
		}, "only cmd/ reads the environment or ends the process; take the value as an option, return an error")...)
	}
	return out
}

// openDatabases: the database belongs to the service; cmd opens the one of the binary.
func openDatabases(tr *tree) []finding {
	var out []finding
	for _, src := range tr.files {
		if src.test || within(src.dir, append(slices.Clone(stores), "cmd", "internal/dbtest")...) {
			continue
		}
		out = append(out, tr.uses(src, opensDatabase,
			"only cmd/ and the stores open databases; take an open one, or a kakutei.Store, from the caller")...)
	}
	return out
}

// opensDatabase knows database/sql, and pgx by its verbs: it has a package for
// each way to connect.
func opensDatabase(importPath, name string) bool {
	switch {
	case importPath == "database/sql":
		return name == "" || name == "Open" || name == "OpenDB"
	case strings.HasPrefix(importPath, "github.com/jackc/pgx/"):
		return name == "" || strings.HasPrefix(name, "Connect") || strings.HasPrefix(name, "Open") || name == "New" || name == "NewWithConfig"
	}
	return false
}

// noInit: what runs at import cannot be configured, and fails by panic alone.
func noInit(tr *tree) []finding {
	var out []finding
	for _, src := range tr.files {
		for _, decl := range src.file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				out = append(out, tr.at(src, fn.Pos(), "func init: do it in New, in main, or in TestMain"))
			}
		}
	}
	return out
}

var emptyNames = []string{"util", "utils", "common", "types", "helper", "helpers", "misc"}

// packageNames: packages are named for a role.
func packageNames(tr *tree) []finding {
	var out []finding
	for _, src := range tr.files {
		name := strings.TrimSuffix(src.file.Name.Name, "_test")
		for _, n := range []string{name, path.Base(src.dir)} {
			if slices.Contains(emptyNames, n) {
				out = append(out, tr.at(src, src.file.Name.Pos(), "package %s: the name says nothing; name the package after what it does, or move its parts to where they are used", n))
				break
			}
		}
	}
	return out
}

// fileLength: one concept to a file.
func fileLength(tr *tree) []finding {
	var out []finding
	for _, src := range tr.files {
		if !src.test && !src.generated && src.lines > maxLines {
			out = append(out, finding{src.path, maxLines + 1, "the file has " + strconv.Itoa(src.lines) + " lines, more than " + strconv.Itoa(maxLines) + ": split it by concept"})
		}
	}
	return out
}

// SQL that a string literal starts with. In capitals the verb alone is enough;
// in small letters it may be the text of an error ("update lease: %w"), so more
// of the statement must be there, and no wrapped error.
var (
	sqlUpper = regexp.MustCompile(`^(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|PRAGMA|WITH|REPLACE|MERGE|TRUNCATE)(\W|$)`)
	sqlAny   = regexp.MustCompile(`(?is)^(select\s.*\sfrom\s|insert\s+(or\s+\w+\s+)?(ignore\s+)?into\s|update\s+\S+\s+set\s|delete\s+from\s|(create|drop|alter)\s+(or\s+replace\s+)?(temp\w*\s+|unique\s+)*(table|index|view|function|trigger|schema|type)\s|pragma\s+\w+\s*($|[=(;])|with\s+(recursive\s+)?\w+\s*(\([^)]*\)\s*)?as\s+(not\s+|materialized\s+)*\()`)
	sqlLead  = regexp.MustCompile(`^(?:\s|\(|--[^\n]*\n|/\*(?s:.*?)\*/)+`)
)

func isSQL(text string) bool {
	text = text[len(sqlLead.FindString(text)):]
	return sqlUpper.MatchString(text) || (sqlAny.MatchString(text) && !strings.Contains(text, ": %"))
}

// sqlPlace: the statements of a store are read side by side, with the reason
// why each is safe, or not at all. queries_NAME.go is for a store that has more
// of them than one file may hold.
func sqlPlace(tr *tree) []finding {
	var out []finding
	for _, src := range tr.files {
		base := path.Base(src.path)
		if src.test || !within(src.dir, stores...) ||
			base == "queries.go" || strings.HasPrefix(base, "queries_") ||
			slices.Contains(strings.Split(src.dir, "/"), "schema") {
			continue
		}
		ast.Inspect(src.file, func(n ast.Node) bool {
			if _, ok := n.(*ast.ImportSpec); ok {
				return false
			}
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(lit.Value); err == nil && isSQL(text) {
				out = append(out, tr.at(src, lit.Pos(), "SQL outside queries.go: make it a named constant there, with a comment that says why it is safe under concurrency (or put it in schema/)"))
			}
			return true
		})
	}
	return out
}

// docComments looks at what a consumer can import. Fields and the methods of
// interfaces are left to the author: a comment on the type often says it all.
func docComments(tr *tree) []finding {
	var out []finding
	undocumented := map[string]*source{} // packages without a package comment, by directory
	documented := map[string]bool{}
	for _, src := range tr.files {
		if src.test || src.generated || src.file.Name.Name == "main" || slices.Contains(strings.Split(src.dir, "/"), "internal") {
			continue
		}
		if hasText(src.file.Doc) {
			documented[src.dir] = true
		} else if undocumented[src.dir] == nil {
			undocumented[src.dir] = src
		}
		for _, decl := range src.file.Decls {
			for _, id := range bareNames(decl) {
				out = append(out, tr.at(src, id.Pos(), "%s is exported and has no doc comment: say what it guarantees, or make it unexported", id.Name))
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(undocumented)) {
		if src := undocumented[dir]; !documented[dir] {
			out = append(out, tr.at(src, src.file.Name.Pos(), "package %s has no package comment: write one in doc.go", src.file.Name.Name))
		}
	}
	return out
}

// bareNames returns the exported names of a declaration that no comment covers.
// The comment of a group of constants or variables covers all of it.
func bareNames(decl ast.Decl) []*ast.Ident {
	var out []*ast.Ident
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && !hasText(d.Doc) && (d.Recv == nil || ast.IsExported(receiver(d))) {
			out = append(out, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && !hasText(s.Doc, s.Comment) && (d.Lparen.IsValid() || !hasText(d.Doc)) {
					out = append(out, s.Name)
				}
			case *ast.ValueSpec:
				if hasText(d.Doc, s.Doc, s.Comment) {
					continue
				}
				for _, id := range s.Names {
					if id.IsExported() && !namedByNeighbour(d, id.Name) {
						out = append(out, id)
					}
				}
			}
		}
	}
	return out
}

// namedByNeighbour reports whether another comment of the group speaks of the
// name, as in "MinA and MaxA bound it".
func namedByNeighbour(d *ast.GenDecl, name string) bool {
	word := regexp.MustCompile(`\b` + name + `\b`)
	return slices.ContainsFunc(d.Specs, func(spec ast.Spec) bool {
		return word.MatchString(spec.(*ast.ValueSpec).Doc.Text())
	})
}

// hasText is false for comments that hold directives alone, like //go:embed.
func hasText(groups ...*ast.CommentGroup) bool {
	return slices.ContainsFunc(groups, func(g *ast.CommentGroup) bool { return strings.TrimSpace(g.Text()) != "" })
}

// receiver returns the name of a method's type, without pointer and type parameters.
func receiver(fn *ast.FuncDecl) string {
	for typ := fn.Recv.List[0].Type; ; {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.ParenExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
