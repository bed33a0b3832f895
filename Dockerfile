# Two stages: the first has the tools that build, the second has only what runs.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src

# The runtime environment carries no pip: the outer interpreter's pip fills it.
RUN python -m venv --without-pip /opt/prfaas && python -m venv /opt/build

# Dependencies change seldom and the source often, so they come first. Every file is hash-checked.
COPY requirements/runtime.txt requirements/build.txt requirements/
RUN python -m pip --python /opt/prfaas/bin/python install --no-cache-dir --require-hashes \
        --requirement requirements/runtime.txt \
    && /opt/build/bin/python -m pip install --no-cache-dir --require-hashes \
        --requirement requirements/build.txt

COPY pyproject.toml README.md LICENSE ./
COPY kvmeta kvmeta
COPY router router
RUN /opt/build/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation \
        --wheel-dir /dist . \
    && python -m pip --python /opt/prfaas/bin/python install --no-cache-dir --no-deps --no-index \
        --find-links /dist prfaas-router

FROM python:3.12-slim-bookworm
LABEL org.opencontainers.image.title="prfaas-router" \
      org.opencontainers.image.description="Gateway, KV-metadata index and scheduler for Prefill-as-a-Service" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"

ENV PATH=/opt/prfaas/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

COPY --from=build /opt/prfaas /opt/prfaas

# A number, so that `runAsNonRoot` can be checked without reading the image's passwd file.
USER 65532:65532
WORKDIR /etc/prfaas
EXPOSE 8000

# SIGTERM starts the drain: not ready at once, still serving, streams run to their end.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]

ENTRYPOINT ["prfaas"]
CMD ["serve", "--config", "/etc/prfaas/config.yaml"]
