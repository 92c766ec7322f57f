# syntax=docker/dockerfile:1
# An image without a shell or an HTTP client, and beside its program one static busybox, so that a health check can ask
# it; and /var/tempo, which a fresh volume takes its owner from.
ARG BASE

FROM busybox:1.37.0-musl AS tools
RUN mkdir -m 0750 /empty && chown 10001:10001 /empty

FROM ${BASE}
COPY --from=tools /bin/busybox /busybox
COPY --from=tools --chown=10001:10001 /empty /var/tempo
USER 10001:10001
