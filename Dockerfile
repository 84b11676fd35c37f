# The two images, for those who have Docker or another builder of Dockerfiles:
#
#	docker build --target outrider -t ghcr.io/outrider-dev/outrider:dev .
#	docker build --target outrider-engine -t ghcr.io/outrider-dev/outrider-engine:dev .
#
# hack/images.sh makes the same images without one.

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS=linux
ARG TARGETARCH=amd64
ARG VERSION=
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH VERSION=$VERSION hack/build.sh
# The files of the images that are no program.
RUN mkdir -p /base/etc/ssl/certs && mkdir -m 1777 /base/tmp && \
    cp /etc/ssl/certs/ca-certificates.crt /base/etc/ssl/certs/ && \
    echo 'nonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin' > /base/etc/passwd && \
    echo 'nonroot:x:65532:' > /base/etc/group && \
    cp LICENSE /base/

FROM scratch AS base
COPY --from=build /base /
ENV PATH=/usr/local/bin:/usr/bin:/bin:/
USER 65532:65532
WORKDIR /
LABEL org.opencontainers.image.source=https://github.com/outrider-dev/outrider \
      org.opencontainers.image.licenses=Apache-2.0

FROM base AS outrider-engine
COPY --from=build /src/bin/outrider-engine /outrider-engine
ENTRYPOINT ["/outrider-engine"]

# The last stage is what a build without --target makes.
FROM base AS outrider
COPY --from=build /src/bin/outrider /outrider
ENTRYPOINT ["/outrider"]
