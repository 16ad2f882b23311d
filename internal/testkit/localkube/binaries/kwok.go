package binaries

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const kwokModule = "sigs.k8s.io/kwok"

// kwokMend is a change of kwok's source that it is built with: the text of one of its files that stands there once,
// and what it is replaced by.
type kwokMend struct{ file, old, new string }

// kwokMends mends defects of the version in hack/kwok/go.mod. A version that has the old text no more fails to build:
// see whether it has the defect no more either, and drop the mend.
var kwokMends = []kwokMend{{
	// The first two Pods of a node, started at the same time, each had a pool of addresses made for them, and got the
	// same address.
	file: "pkg/kwok/controllers/pod_controller.go",
	old:  "c.ipPools.Store(cidr, pool)\n",
	new:  "pool, _ = c.ipPools.LoadOrStore(cidr, pool)\n",
}, {
	// A Pod is deleted once for each event of it that comes before it is gone. The last of these deletions met the next
	// Pod of that name. A kubelet names the UID of the Pod it is done with.
	file: "pkg/kwok/controllers/pod_controller.go",
	old:  "Delete(ctx, pod.Name, deleteOpt)\n",
	new:  "Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: deleteOpt.GracePeriodSeconds, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})\n",
}}

// buildKwok builds kwok with its mends, from a copy of its module.
func buildKwok(ctx context.Context, compiler *Compiler, root, output string) error {
	module := filepath.Join(root, "hack", "kwok")
	if _, err := goOutput(ctx, module, "mod", "download", kwokModule); err != nil {
		return err
	}
	source, err := goOutput(ctx, module, "list", "-m", "-f", "{{.Dir}}", kwokModule)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "kwok-")
	if err != nil {
		return fmt.Errorf("making a folder for kwok's source: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, os.DirFS(module)); err != nil { // go.mod and go.sum
		return fmt.Errorf("copying kwok's module files: %w", err)
	}
	mended, modFile := filepath.Join(work, "source"), filepath.Join(work, "go.mod")
	if err := mendKwok(source, mended, kwokMends); err != nil {
		return err
	}
	if _, err := goOutput(ctx, module, "mod", "edit", "-replace="+kwokModule+"="+mended, modFile); err != nil {
		return err
	}
	return compiler.Compile(ctx, &Compilation{Name: "kwok, which simulates nodes", Dir: module,
		Flags: releases[0].buildFlags(), Packages: []string{kwokModule + "/cmd/kwok"}}, "-modfile="+modFile, "-o", output)
}

// mendKwok copies kwok's source into a folder that is not there yet, with mends.
func mendKwok(source, into string, mends []kwokMend) error {
	if err := os.CopyFS(into, os.DirFS(source)); err != nil {
		return fmt.Errorf("copying kwok's source: %w", err)
	}
	for _, m := range mends {
		path := filepath.Join(into, filepath.FromSlash(m.file))
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("mending kwok: %w", err)
		}
		if n := strings.Count(string(text), m.old); n != 1 {
			return fmt.Errorf("mending kwok: %s has %q %d times, not once: see whether this version still needs the mend",
				m.file, m.old, n)
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600); err != nil {
			return fmt.Errorf("mending kwok: %w", err)
		}
	}
	return nil
}
