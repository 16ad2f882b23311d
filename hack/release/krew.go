package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const pluginName = "kubectl-kuperator"

type krewPlugin struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       krewSpec          `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage,omitempty"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	Sha256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// address is the URL of a file, or its name if it is not published: krew is then given the archive.
func (r release) address(name string) string {
	if r.download == "" {
		return name
	}
	return r.download + "/" + name
}

// krew writes the manifest by which krew installs the plugin, from the archives that are in the folder.
func (r release) krew() error {
	archives, err := filepath.Glob(filepath.Join(r.out, pluginName+"_*")) // sorted by name
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return fmt.Errorf("%s has no archive of %s: make release puts them there", r.out, pluginName)
	}
	plugin := krewPlugin{APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin",
		Metadata: map[string]string{"name": "kuperator"},
		Spec: krewSpec{Version: r.version, Homepage: r.docs,
			ShortDescription: "See what Pods and rollouts wait for, and operate them",
			Description: "What Pods under Kuperator's lifecycle wait for, who holds them up, since when, and what to do;\n" +
				"rollouts, jobs and freezes from the command line. kubectl kuperator doctor checks the installation.\n",
		}}
	for _, path := range archives {
		archive := filepath.Base(path)
		sum, err := r.sum(archive)
		if err != nil {
			return err
		}
		short, _, _ := strings.Cut(strings.TrimPrefix(archive, pluginName+"_"), ".")
		system, architecture, _ := strings.Cut(short, "_")
		bin := pluginName
		if system == "windows" {
			bin += ".exe"
		}
		plugin.Spec.Platforms = append(plugin.Spec.Platforms, krewPlatform{
			Selector: krewSelector{MatchLabels: map[string]string{"os": system, "arch": architecture}},
			URI:      r.address(archive), Sha256: sum, Bin: bin,
		})
	}
	content, err := yaml.Marshal(plugin)
	if err != nil {
		return err
	}
	return r.write("kuperator.yaml", content)
}
