package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// authoritiesModule is where the image's certificate authorities come from.
const authoritiesModule = "golang.org/x/crypto/x509roots/fallback"

// sbom is the bill of materials of a program, CycloneDX in JSON: what the Go linker recorded in the file (go version
// -m), Go's standard library and, of an image, its certificate authorities. The same program gives the same bytes.
func (j *job) sbom(program, component string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	own, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("this program does not know its modules: build it in module mode")
	}
	sum := sha256.Sum256(content)
	subject := cdx.Component{
		BOMRef:     purl(modulePath, j.version) + "#cmd/" + component,
		Type:       cdx.ComponentTypeApplication,
		Name:       component,
		Version:    j.version,
		PackageURL: purl(modulePath, j.version) + "#cmd/" + component,
		Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
		Licenses:   &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		Properties: buildProperties(info),
	}
	parts := []cdx.Component{library(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})}
	for _, module := range info.Deps {
		parts = append(parts, library(module))
	}
	hasAuthorities := slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == authoritiesModule })
	if component != pluginName && !hasAuthorities {
		i := slices.IndexFunc(own.Deps, func(m *debug.Module) bool { return m.Path == authoritiesModule })
		if i < 0 {
			return nil, fmt.Errorf("this program was not built with %s", authoritiesModule)
		}
		roots := library(own.Deps[i])
		roots.Type = cdx.ComponentTypeData
		parts = append(parts, roots)
	}
	slices.SortFunc(parts, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })

	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &subject}
	if j.created.Unix() > 0 {
		bom.Metadata.Timestamp = j.created.Format(time.RFC3339)
	}
	bom.Components = &parts
	bom.Dependencies = dependencies(subject.BOMRef, parts)
	var text bytes.Buffer
	if err := cdx.NewBOMEncoder(&text, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

// library describes a module; a replaced one is described by what took its place.
func library(module *debug.Module) cdx.Component {
	if module.Replace != nil {
		module = module.Replace
	}
	part := cdx.Component{
		BOMRef:     purl(module.Path, module.Version),
		Type:       cdx.ComponentTypeLibrary,
		Name:       module.Path,
		Version:    module.Version,
		Scope:      cdx.ScopeRequired,
		PackageURL: purl(module.Path, module.Version),
	}
	// h1 is the SHA-256 of the list of the module's files with their SHA-256, in base64.
	if encoded, found := strings.CutPrefix(module.Sum, "h1:"); found {
		if sum, err := base64.StdEncoding.DecodeString(encoded); err == nil {
			part.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
	}
	return part
}

// purl is a package URL (github.com/package-url/purl-spec); a plus sign of a version like v2.0.0+incompatible is
// escaped.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// dependencies states that the program contains all of them. Which of them needs which is not recorded in a program.
func dependencies(subject string, parts []cdx.Component) *[]cdx.Dependency {
	all := []cdx.Dependency{{Ref: subject}}
	var direct []string
	for _, part := range parts {
		direct = append(direct, part.BOMRef)
		all = append(all, cdx.Dependency{Ref: part.BOMRef})
	}
	all[0].Dependencies = &direct
	return &all
}

// buildProperties are the settings that the program was built with, named as CycloneDX's own tool for Go names them.
func buildProperties(info *debug.BuildInfo) *[]cdx.Property {
	var all []cdx.Property
	for _, setting := range info.Settings {
		switch {
		case strings.HasPrefix(setting.Key, "GO"), strings.HasPrefix(setting.Key, "CGO_"):
			all = append(all, cdx.Property{Name: "cdx:gomod:build:env:" + setting.Key, Value: setting.Value})
		case setting.Key == "-compiler":
			all = append(all, cdx.Property{Name: "cdx:gomod:build:compiler", Value: setting.Value})
		}
	}
	return &all
}
