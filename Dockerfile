# Longhouse as an image: `docker build -t longhouse .`; what it needs is in docs/deployment.md. Your agents.yaml and
# tools.py go into an image of yours: FROM longhouse, COPY them, pip install what they import ("Your project" there).
FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 VIRTUAL_ENV=/opt/longhouse
WORKDIR /build
RUN python -m venv --without-pip /opt/longhouse
COPY requirements/uv.lock.txt requirements/run.lock.txt requirements/
# The locks name every package with its hash. They stand before the source, so that a change there installs nothing anew.
RUN pip install --require-hashes -r requirements/uv.lock.txt \
 && uv pip install --compile-bytecode --require-hashes -r requirements/run.lock.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src src
RUN uv pip install --offline --no-deps --compile-bytecode .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /data --create-home longhouse
COPY --from=build /opt/longhouse /opt/longhouse
# Whoever maps the port reaches the API: it starts with LONGHOUSE_ADMIN_KEY, or with a key in the database.
ENV PATH=/opt/longhouse/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    LONGHOUSE_HOST=0.0.0.0 \
    LONGHOUSE_PORT=8400 \
    LONGHOUSE_DATA_DIR=/data/longhouse \
    STATE_DIRECTORY=/data/state
WORKDIR /data
USER longhouse
VOLUME /data
EXPOSE 8400
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['LONGHOUSE_PORT'] + '/health', timeout=4)"]
ENTRYPOINT ["longhouse"]
CMD ["serve"]
