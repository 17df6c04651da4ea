# A server of released models: docs/howto/serving.md. Every command is run by tests/serve/test_dockerfile.py.
FROM python:3.12-slim
ENV NUMBA_CACHE_DIR=/opt/dpmd-kernels PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml README.md LICENSE /src/
COPY dpmd_fast /src/dpmd_fast
RUN pip install /src
RUN install -d -o 10001 -g 10001 /opt/dpmd-kernels
USER 10001:10001
RUN dpmd-fast warmup --for transform
EXPOSE 8815
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 8815), 2)"]
ENTRYPOINT ["dpmd-fast", "serve", "--models", "/models", "--host", "0.0.0.0", "--port", "8815"]
CMD ["--tokens", "/secrets/tokens", "--tls-cert", "/secrets/server.crt", "--tls-key", "/secrets/server.key"]
