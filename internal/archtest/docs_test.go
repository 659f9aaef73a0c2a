package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsNameRealThings checks that every test and every file that the
// documents point to is there: a proof that cannot be found proves nothing.
func TestDocsNameRealThings(t *testing.T) {
	t.Parallel()
	root := "../.."
	defined := make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func (Test\w+|Benchmark\w+|Fuzz\w+)\(`)
	var docs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		switch {
		case strings.HasSuffix(path, "_test.go"):
			content, err := os.ReadFile(path)
			for _, m := range function.FindAllStringSubmatch(string(content), -1) {
				defined[m[1]] = true
			}
			return err
		case strings.HasSuffix(path, ".md"):
			docs = append(docs, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+|Benchmark\\w+|Fuzz\\w+)`")
	linked := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	found := 0
	for _, doc := range docs {
		content, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(content), -1) {
			if found++; !defined[m[1]] {
				t.Errorf("%s names %s, and there is no such test", doc, m[1])
			}
		}
		for _, m := range linked.FindAllStringSubmatch(string(content), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(doc), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
	if found == 0 {
		t.Error("no document names a test; the search is broken")
	}
}
