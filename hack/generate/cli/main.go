// Command cli writes the reference pages of kubectl kuperator into a folder: one page for each command.
//
// Usage: go run ./hack/generate/cli FOLDER
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"kusionstack.io/kuperator/internal/plugin"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: cli FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(dir string) error {
	root := plugin.NewCommand(genericiooptions.NewTestIOStreamsDiscard())
	root.DisableAutoGenTag = true
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return page(root, dir)
}

// inherited are the flags that every command has: they are on the page of the root alone.
var inherited = regexp.MustCompile("(?s)### Options inherited from parent commands\n\n```\n.*?```\n")

func page(cmd *cobra.Command, dir string) error {
	var text bytes.Buffer
	if err := doc.GenMarkdownCustom(cmd, &text, file); err != nil {
		return err
	}
	body := inherited.ReplaceAllString(text.String(),
		"Flags of every command are on [the page of kubectl kuperator](kubectl_kuperator.md).\n")
	if err := os.WriteFile(filepath.Join(dir, file(cmd.CommandPath())), []byte(body), 0o644); err != nil {
		return err
	}
	for _, child := range cmd.Commands() {
		if !child.IsAvailableCommand() || child.IsAdditionalHelpTopicCommand() || child.Name() == "completion" {
			continue
		}
		if err := page(child, dir); err != nil {
			return err
		}
	}
	return nil
}

// file is a page's name, of the command's path or of cobra's own name for it.
func file(name string) string {
	name = strings.TrimSuffix(name, ".md")
	return strings.ReplaceAll(name, " ", "_") + ".md"
}
