# Two stages: wheels are built where a compiler may be, the image that runs holds neither compiler nor pip cache.
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY mqbridge mqbridge
RUN python -m venv /opt/mqbridge && /opt/mqbridge/bin/pip install --no-cache-dir -c requirements.lock .

FROM python:3.11-slim
COPY --from=build /opt/mqbridge /opt/mqbridge
COPY config /etc/mqbridge
ENV PATH=/opt/mqbridge/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --system --uid 10001 --home-dir /var/lib/mqbridge --create-home mqbridge
USER mqbridge
WORKDIR /var/lib/mqbridge
VOLUME /var/lib/mqbridge
EXPOSE 8098
# `docker stop` sends SIGTERM, which drains; give it longer than the drain timeout: docker stop -t 60.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8098/health/ready', timeout=2)"
ENTRYPOINT ["mqbridge"]
CMD ["run", "/etc/mqbridge/tubemq-to-pulsar.yaml"]
