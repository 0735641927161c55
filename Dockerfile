# Warren's image: the two programs and the libraries they load, nothing else. Runs as an ordinary user. About 9 MB; there is
# no shell in it: `docker exec NAME warrenctl ...` works, and for more `docker run -it --pid=container:NAME debian:12`.
# BASE may name any Debian 12 image that reaches a package mirror; it serves the build alone.
#   docker build -t warren .
ARG BASE=debian:12-slim
FROM ${BASE} AS build
# What the Makefile's PKGS and its code generators need.
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      gcc libc6-dev make pkg-config protobuf-c-compiler protobuf-compiler \
      libuv1-dev libprotobuf-c-dev liblmdb-dev libssl-dev libpcre2-dev libjansson-dev check >/dev/null
WORKDIR /src
COPY . .
RUN make -s -j"$(nproc)" programs && install -s -Dt /image/usr/bin build/warren build/warrenctl

# The libraries under the names the loader looks for, with their licences; name resolution as in any container; the user.
RUN set -e; libraries=$(ldd build/warren build/warrenctl | awk '$2 == "=>" { print $3 } $1 ~ /^\/lib.*ld-/ { print $1 }' | sort -u); \
    for f in $libraries; do \
      install -D "$f" "/image$f"; \
      package=$(dpkg-query -S "*/$(basename "$(readlink -f "$f")")" | head -1 | cut -d: -f1); \
      install -Dm644 "/usr/share/doc/$package/copyright" "/image/usr/share/doc/$package/copyright"; \
    done; \
    install -Dm644 LICENSE /image/usr/share/doc/warren/copyright; \
    install -Dm644 /dev/null /image/etc/warren/warren.conf; install -dm1777 /image/tmp; \
    echo 'hosts: files dns' >/image/etc/nsswitch.conf; \
    echo 'warren:x:999:999::/var/lib/warren:/' >/image/etc/passwd; echo 'warren:x:999:' >/image/etc/group; \
    install -d -o 999 -g 999 -m 750 /data

FROM scratch
COPY --from=build /image/ /
COPY --from=build --chown=999:999 /data/ /var/lib/warren/
USER 999:999
VOLUME /var/lib/warren
EXPOSE 5672 25672
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["warrenctl", "-q", "ping"]
ENTRYPOINT ["warren"]
CMD ["--config", "/etc/warren/warren.conf"]
