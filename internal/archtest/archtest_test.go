package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestArchitecture applies every rule to the whole module.
func TestArchitecture(t *testing.T) {
	t.Parallel()
	tr, err := load(os.DirFS(moduleRoot(t)))
	if err != nil {
		t.Fatal(err)
	}
	// A loader that finds nothing would let every rule pass.
	for _, dir := range []string{".", "internal/archtest"} {
		if !slices.ContainsFunc(tr.files, func(f *source) bool { return f.dir == dir }) {
			t.Fatalf("no Go file was found in %s: the loader is broken", dir)
		}
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			for _, f := range r.check(tr) {
				t.Error(f)
			}
		})
	}
}

// moduleRoot returns the directory of go.mod, above the one the test runs in.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}

// tree is the module as the rules see it.
type tree struct {
	module string
	fset   *token.FileSet
	files  []*source
}

// source is one Go file.
type source struct {
	path      string // slash-separated, from the root of the module
	dir       string // "." for the root package
	test      bool
	generated bool
	lines     int
	file      *ast.File
}

// finding is one breach of a rule, printed as file:line: text.
type finding struct {
	path string
	line int
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.text) }

// at makes the finding for a place in a file.
func (tr *tree) at(src *source, pos token.Pos, format string, args ...any) finding {
	return finding{src.path, tr.fset.Position(pos).Line, fmt.Sprintf(format, args...)}
}

// load parses every Go file of the module in fsys. Like the go command it skips
// testdata, vendor, hidden directories and modules nested in this one.
func load(fsys fs.FS) (*tree, error) {
	mod, err := fs.ReadFile(fsys, "go.mod")
	if err != nil {
		return nil, err
	}
	tr := &tree{module: modulePath(string(mod)), fset: token.NewFileSet()}
	if tr.module == "" {
		return nil, fmt.Errorf("go.mod names no module")
	}
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && skipDir(fsys, name) {
				return fs.SkipDir
			}
			return nil
		}
		base := path.Base(name)
		if !strings.HasSuffix(base, ".go") || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(tr.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		tr.files = append(tr.files, &source{
			path:      name,
			dir:       path.Dir(name),
			test:      strings.HasSuffix(base, "_test.go"),
			generated: ast.IsGenerated(file),
			lines:     strings.Count(string(text), "\n"),
			file:      file,
		})
		return nil
	})
	return tr, err
}

func skipDir(fsys fs.FS, name string) bool {
	base := path.Base(name)
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(name, "go.mod"))
	return err == nil
}

func modulePath(mod string) string {
	for line := range strings.Lines(mod) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "module" {
			return strings.Trim(f[1], `"`)
		}
	}
	return ""
}

// imported is one import of a file.
type imported struct {
	path string
	name string // as written in the file, or what the path suggests
	spec *ast.ImportSpec
}

func (src *source) imports() []imported {
	var out []imported
	for _, spec := range src.file.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has refused it already
		}
		name := importName(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		out = append(out, imported{p, name, spec})
	}
	return out
}

// importName is the usual name of a package: the last part of its path, or the
// one before it if the last is a major version.
func importName(p string) string {
	base := path.Base(p)
	if len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		base = path.Base(path.Dir(p))
	}
	return base
}

// own returns the directory of a package of this module.
func (tr *tree) own(importPath string) (dir string, ok bool) {
	if importPath == tr.module {
		return ".", true
	}
	return strings.CutPrefix(importPath, tr.module+"/")
}

// standard reports whether a path is of the standard library. cgo counts as
// foreign: it brings a C compiler into every build.
func standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".") && importPath != "C"
}

// within reports whether dir is one of the roots or below one.
func within(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return dir == root || strings.HasPrefix(dir, root+"/")
	})
}
