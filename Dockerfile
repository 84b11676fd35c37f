# The images, for those who have Docker or another builder of Dockerfiles:
#
#	docker build --target outrider -t ghcr.io/outrider-dev/outrider:dev .
#	docker build --target outrider-engine -t ghcr.io/outrider-dev/outrider-engine:dev .
#	docker build --target outrider-engine-cuda -t ghcr.io/outrider-dev/outrider-engine-cuda:dev .
#
# "docker buildx build --platform linux/amd64,linux/arm64" makes them for both.
# hack/images.sh makes the same images without Docker.

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

FROM build AS build-cuda
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH VERSION=$VERSION OUT=bin/cuda hack/build.sh --cuda

# Debian's C library and NVIDIA's run-time libraries, in folders that become layers.
FROM --platform=$BUILDPLATFORM debian:12 AS runtime
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3-pip unzip
COPY hack/cuda /cuda
ARG TARGETARCH=amd64
ARG CUDA=13
RUN CUDA=$CUDA /cuda/runtime.sh $TARGETARCH /runtime

FROM scratch AS base
COPY --from=build /base /
ENV PATH=/usr/local/bin:/usr/bin:/bin:/ \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
USER 65532:65532
WORKDIR /
LABEL org.opencontainers.image.source=https://github.com/outrider-dev/outrider

FROM scratch AS base-cuda
COPY --from=runtime /runtime/glibc /
COPY --from=runtime /runtime/nvidia /
COPY --from=build /base /
ENV PATH=/usr/local/bin:/usr/bin:/bin:/ \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    NVIDIA_VISIBLE_DEVICES=void \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nvidia/lib64
USER 65532:65532
WORKDIR /
LABEL org.opencontainers.image.source=https://github.com/outrider-dev/outrider

FROM base-cuda AS outrider-engine-cuda
COPY --from=build-cuda /src/bin/cuda/outrider-engine /outrider-engine
LABEL org.opencontainers.image.licenses="Apache-2.0 AND LicenseRef-NVIDIA-CUDA-EULA AND BSD-3-Clause AND LGPL-2.1-or-later AND GPL-3.0-or-later WITH GCC-exception-3.1"
ENTRYPOINT ["/outrider-engine"]

FROM base AS outrider-engine
COPY --from=build /src/bin/outrider-engine /outrider-engine
LABEL org.opencontainers.image.licenses=Apache-2.0
ENTRYPOINT ["/outrider-engine"]

# The last stage is what a build without --target makes.
FROM base AS outrider
COPY --from=build /src/bin/outrider /outrider
LABEL org.opencontainers.image.licenses=Apache-2.0
ENTRYPOINT ["/outrider"]
