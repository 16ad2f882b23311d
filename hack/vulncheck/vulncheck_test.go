package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write makes files below a new folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// database is one by which two functions of Go's standard library are vulnerable in every version.
func database(t *testing.T) string {
	t.Helper()
	const time = "2025-01-01T00:00:00Z"
	files := map[string]string{"index/db.json": `{"modified":"` + time + `"}`}
	modules, vulns := map[string]any{"path": "stdlib"}, []any{}
	list := []any{}
	for id, symbol := range map[string]string{"GO-2099-0001": "ToUpper", "GO-2099-0002": "ToLower"} {
		content, err := json.Marshal(map[string]any{
			"schema_version": "1.3.1", "id": id, "modified": time, "published": time, "summary": symbol + " is too loud",
			"affected": []any{map[string]any{
				"package": map[string]any{"name": "stdlib", "ecosystem": "Go"},
				"ranges": []any{map[string]any{"type": "SEMVER",
					"events": []any{map[string]any{"introduced": "0"}, map[string]any{"fixed": "99.0.0"}}}},
				"ecosystem_specific": map[string]any{"imports": []any{map[string]any{"path": "strings", "symbols": []any{symbol}}}},
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		files["ID/"+id+".json"] = string(content)
		list = append(list, map[string]any{"id": id, "modified": time, "fixed": "99.0.0"})
		vulns = append(vulns, map[string]any{"id": id, "modified": time})
	}
	modules["vulns"] = list
	for name, value := range map[string]any{"modules": []any{modules}, "vulns": vulns} {
		content, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		files["index/"+name+".json"] = string(content)
	}
	return "file://" + filepath.ToSlash(write(t, files))
}

func TestOnlyWhatIsReachedIsFound(t *testing.T) {
	root := write(t, map[string]string{
		"go.mod":         "module example.com/shout\n\ngo 1.26.0\n",
		"cmd/shout/m.go": "package main\n\nimport (\n\t\"os\"\n\t\"strings\"\n)\n\nfunc main() { println(strings.ToUpper(os.Args[0])) }\n",
		"api/a.go":       "// Package api is empty.\npackage api\n",
	})
	found, err := scanned(t.Context(), root, database(t), "./cmd/...", "./api/...")
	if err != nil {
		t.Fatal(err)
	}
	f, there := found["GO-2099-0001"]
	if len(found) != 1 || !there || f.call != "strings.ToUpper" || f.module != "stdlib" || f.fixed != "v99.0.0" {
		t.Fatalf("found %+v, wanted the one function that is called", found)
	}
	err = verdict(found, nil, &bytes.Buffer{})
	for _, want := range []string{"GO-2099-0001", "ToUpper is too loud", "build with Go 99.0.0",
		"hack/vulncheck/ignored.txt"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v does not say %q", err, want)
		}
	}

	var out bytes.Buffer
	if err := verdict(found, map[string]string{"GO-2099-0001": "we are loud"}, &out); err != nil ||
		!strings.Contains(out.String(), "we are loud") {
		t.Fatalf("an excused one is an error or is not mentioned: %v, %s", err, out.String())
	}
	if err := verdict(nil, map[string]string{"GO-2099-0001": "we are loud"}, &out); err == nil ||
		!strings.Contains(err.Error(), "not found any more") {
		t.Fatalf("an excuse for nothing: %v", err)
	}
}

func TestAnExcuseNeedsAReason(t *testing.T) {
	got, err := parseIgnored("# of old\n\nGO-2099-0001 we are loud\n")
	if err != nil || len(got) != 1 || got["GO-2099-0001"] != "we are loud" {
		t.Fatal(got, err)
	}
	if _, err := parseIgnored("GO-2099-0001\n"); err == nil {
		t.Fatal("an excuse without a reason is taken")
	}
	if _, err := parseIgnored(ignoredList); err != nil {
		t.Fatal(err)
	}
}

func TestTheDatabaseIsTheOneBesideElseTheOneOnlineElseNone(t *testing.T) {
	online := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/index/db.json" {
			http.NotFound(w, r)
		}
	}))
	root := filepath.Join(write(t, map[string]string{"project/go.mod": ""}), "project")
	expect := func(want string) {
		t.Helper()
		got, err := findDatabase(t.Context(), root, online.URL)
		if err != nil || got != want {
			t.Fatalf("%q, %v; wanted %q", got, err, want)
		}
	}
	expect(online.URL)
	online.Close()
	expect("")
	copied := filepath.Join(filepath.Dir(root), "shared", "vulndb", "index")
	if err := os.MkdirAll(copied, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, "db.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect("file://" + filepath.ToSlash(filepath.Dir(copied)))
}

func TestAnEmptyReportIsNoGoodNews(t *testing.T) {
	if _, err := parseReport(strings.NewReader("")); err == nil {
		t.Fatal("nothing was scanned, and that is no error")
	}
}
