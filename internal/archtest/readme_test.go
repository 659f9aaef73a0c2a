package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadmeProgram builds the program that README shows, as a newcomer would:
// in a module of his own, on a clone.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, program, ok := strings.Cut(string(readme), "```go\npackage main\n")
	program, _, closed := strings.Cut(program, "\n```")
	if !ok || !closed {
		t.Fatal("README.md shows no whole program")
	}
	dir := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", "package main\n"+program+"\n")
	write("go.mod", "module example.com/newcomer\n\ngo 1.26\n\nrequire github.com/kakutei-go/kakutei v0.0.0\n\nreplace github.com/kakutei-go/kakutei => "+root+"\n")
	for _, args := range [][]string{{"mod", "tidy"}, {"vet", "."}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
