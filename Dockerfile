# A small image of Warren that runs as an ordinary user. BASE and BUILD_BASE may name any Debian 12 image.
ARG BASE=debian:12-slim
ARG BUILD_BASE=debian:12-slim
FROM ${BUILD_BASE} AS build
WORKDIR /src
COPY . .
RUN make && strip build/warren build/warrenctl

FROM ${BASE}
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      libuv1 libprotobuf-c1 liblmdb0 libssl3 libpcre2-8-0 libjansson4 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 999 --home /var/lib/warren --create-home warren
COPY --from=build /src/build/warren /src/build/warrenctl /usr/local/bin/
USER warren
VOLUME /var/lib/warren
EXPOSE 5672 25672
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["warrenctl", "-q", "ping"]
ENTRYPOINT ["warren"]
CMD ["--config", "/etc/warren/warren.conf"]
