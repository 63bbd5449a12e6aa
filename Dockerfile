# Image of the gateway. One stage builds the compiled module, with Rust and the Debian version of the final image. Another stage
# installs the Python packages. The final image contains neither a compiler nor a pip cache.
FROM rust:1-slim AS rust

FROM python:3.11-slim AS native
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/rustup /usr/local/rustup
COPY --from=rust /usr/local/cargo /usr/local/cargo
ENV RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:$PATH
WORKDIR /src
COPY LICENSE requirements.lock ./
COPY native native
RUN PIP_CONSTRAINT=requirements.lock pip wheel --no-cache-dir --no-deps --wheel-dir /wheels ./native

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY mqbridge mqbridge
COPY --from=native /wheels /wheels
RUN python -m venv /opt/mqbridge && /opt/mqbridge/bin/pip install --no-cache-dir -c requirements.lock . /wheels/*.whl \
  && /opt/mqbridge/bin/python -c "from mqbridge import native; assert native.compiled, native.notice"

FROM python:3.11-slim
COPY --from=build /opt/mqbridge /opt/mqbridge
COPY mqbridge/shipped /etc/mqbridge
ENV PATH=/opt/mqbridge/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --uid 10001 --home-dir /var/lib/mqbridge --create-home mqbridge
USER mqbridge
WORKDIR /var/lib/mqbridge
VOLUME /var/lib/mqbridge
EXPOSE 8098
# After the SIGTERM of `docker stop` the gateway delivers the messages in flight. Wait longer than `shutdown_timeout`: docker stop -t 60.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8098/health/ready', timeout=2)"
ENTRYPOINT ["mqbridge"]
CMD ["run", "/etc/mqbridge/tubemq-to-pulsar.yaml"]
