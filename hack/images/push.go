package main

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// sbomMediaType is registered with IANA by CycloneDX.
const sbomMediaType = "application/vnd.cyclonedx+json"

// push uploads the image below a prefix, with the credentials of docker login, and each SBOM as a referrer of its
// platform's image. It returns the image's full name with its digest.
func (i *image) push(ctx context.Context, prefix string) (string, error) {
	tag, err := name.NewTag(prefix + "/" + i.component + ":" + i.version)
	if err != nil {
		return "", err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(tag, i.index, options...); err != nil {
		return "", err
	}
	for _, p := range i.platforms {
		attached, err := p.referrer()
		if err != nil {
			return "", err
		}
		digest, err := attached.Digest()
		if err != nil {
			return "", err
		}
		if err := remote.Write(tag.Context().Digest(digest.String()), attached, options...); err != nil {
			return "", fmt.Errorf("SBOM: %w", err)
		}
	}
	digest, err := i.index.Digest()
	if err != nil {
		return "", err
	}
	return tag.Context().Digest(digest.String()).String(), nil
}

// referrer is an OCI artifact with the SBOM, whose subject is the image.
func (p *platformImage) referrer() (v1.Image, error) {
	subject, err := partial.Descriptor(p.image)
	if err != nil {
		return nil, err
	}
	artifact := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), sbomMediaType)
	artifact, err = mutate.AppendLayers(artifact, static.NewLayer(p.sbom, sbomMediaType))
	if err != nil {
		return nil, err
	}
	return mutate.Subject(artifact, *subject).(v1.Image), nil
}
