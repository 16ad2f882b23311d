# syntax=docker/dockerfile:1
# One image of one component: docker build --build-arg COMPONENT=collaset-controller -t kuperator/collaset-controller:v0.1.0 .
# "make images" builds all of them without Docker, reproducibly; this file is for those who build with a container engine.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY api api
COPY cmd cmd
COPY internal internal
ARG COMPONENT
ARG VERSION=v0.1.0
ARG TARGETOS TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    test -n "$COMPONENT" || { echo "say which one: --build-arg COMPONENT=collaset-controller" >&2; exit 1; }; \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X kusionstack.io/kuperator/internal/bootstrap.version=$VERSION" \
    -o /component "./cmd/$COMPONENT"

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
ARG COMPONENT
ARG VERSION=v0.1.0
LABEL org.opencontainers.image.title=$COMPONENT \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.licenses=Apache-2.0
COPY LICENSE /LICENSE
COPY --from=build /component /component
USER 65532:65532
ENTRYPOINT ["/component"]
