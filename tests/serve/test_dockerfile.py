"""Every command of the Dockerfile, without Docker."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from serve.served import ROOT, TOKEN, Running, make_table, save_models

from dpmd_fast.serve import connect

LINES = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]


def instructions(name):
    return [line.split(" ", 1)[1] for line in LINES if line.split(" ")[0] == name]


def test_only_what_is_tested_here_stands_in_it():
    known = {"FROM", "ENV", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {line.split(" ")[0] for line in LINES} == known
    commands = [shlex.split(text)[0] for text in instructions("RUN")]
    assert commands == ["pip", "install", "dpmd-fast"]
    for text in instructions("COPY"):
        for name in text.split()[:-1]:
            assert (ROOT / name).exists()


@pytest.mark.slow
def test_the_package_installs_from_what_is_copied(tmp_path):
    import shutil

    for text in instructions("COPY"):
        *names, target = text.split()
        for name in names:
            place = tmp_path / target.strip("/")
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, place)
    (text,) = [text for text in instructions("RUN") if text.startswith("pip")]
    assert text == "pip install /src"
    # dependencies are there; the tools that build are pip's own business
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(tmp_path / "site")]
    done = subprocess.run([*command, str(tmp_path / "src")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "dpmd_fast" / "serve" / "server.py").exists()
    assert (tmp_path / "site" / "bin" / "dpmd-fast").exists()


@pytest.mark.slow
def test_kernels_are_compiled_into_the_image():
    """With the cache that is there already: to compile takes minutes, and is tested elsewhere."""
    (text,) = [text for text in instructions("RUN") if text.startswith("dpmd-fast")]
    command = [sys.executable, "-m", "dpmd_fast", *shlex.split(text)[1:]]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_kernels_are_compiled_by_the_user_who_runs_the_server():
    """Numba reads no cache from a folder that it cannot write."""
    (folder,) = [one.partition("=")[2] for one in instructions("ENV")[0].split() if one.startswith("NUMBA")]
    user, group = instructions("USER")[0].split(":")
    made = f"RUN install -d -o {user} -g {group} {folder}"
    order = [LINES.index(made), LINES.index(f"USER {user}:{group}")]
    order.append(LINES.index("RUN dpmd-fast warmup --for transform"))
    assert order == sorted(order)
    assert len(instructions("USER")) == 1
    recipe = (
        (ROOT / "docs" / "howto" / "containers.md")
        .read_text()
        .partition("```dockerfile\n")[2]
        .partition("```")[0]
    )
    lines = [line.strip() for line in recipe.splitlines()]
    assert lines[3].endswith(f"&& {made.removeprefix('RUN ')}")
    assert lines[4:] == [f"USER {user}:{group}", "RUN dpmd-fast warmup --for transform"]


PROGRAM = """
import os, sys
import numba.core.caching, numba.core.compiler, numba.core.registry
from dpmd_fast.kernels import jit
import numba; numba.njit(lambda x: x)(1)  # loads the compiler, before its files may be out of reach
os.setgroups([]); os.setresgid(10001, 10001, 10001); os.setresuid(10001, 10001, 10001)
import warnings; warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import small
kernel = jit.kernel(small.double)
types = (numba.int64,)
before = jit.has_cache(kernel) and jit.is_cached(kernel, types)
kernel(1)
print(jit.has_cache(kernel), before, jit.has_cache(kernel) and jit.is_cached(kernel, types))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.slow  # compiles
def test_a_cache_is_used_by_a_user_who_is_not_root():
    def process(kernels):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(kernels), "HOME": "/nonexistent"}
        env.pop("DPMD_FAST_CACHE", None)
        command = [sys.executable, "-c", PROGRAM, str(folder)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    with tempfile.TemporaryDirectory() as name:  # pytest's folders are for root alone
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "small.py").write_text("def double(x):\n    return 2 * x\n")
        of_root, own = folder / "of_root", folder / "own"
        of_root.mkdir(0o755)
        assert process(of_root) == ["False", "False", "False"]
        command = ["install", "-d", "-o", "10001", "-g", "10001", str(own)]  # as in the Dockerfile
        subprocess.run(command, check=True)
        assert process(own) == ["True", "False", "True"]
        assert process(own) == ["True", "True", "True"]


@pytest.mark.skipif(not os.access("/usr/bin/openssl", os.X_OK), reason="no openssl")
def test_the_server_of_the_image(tmp_path):
    """Entry point and arguments as they stand there, but for folders and port; then the health check."""
    models, secrets = tmp_path / "models", tmp_path / "secrets"
    models.mkdir()
    secrets.mkdir()
    save_models(models)
    (secrets / "tokens").write_text(TOKEN)
    (secrets / "tokens").chmod(0o600)
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(secrets / "server.key"),
    ]
    command += ["-out", str(secrets / "server.crt"), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    entry, more = (json.loads(instructions(name)[0]) for name in ("ENTRYPOINT", "CMD"))
    assert entry[:4] == ["dpmd-fast", "serve", "--models", "/models"]
    place = entry.index("--port")
    options = [*entry[4:place], *entry[place + 2 :], *(one.replace("/secrets", str(secrets)) for one in more)]
    server = Running(tmp_path, models, *options)
    try:
        server.wait()
        with connect(
            server.uri("knot", "grpc+tls"),
            TOKEN,
            tls_root=(secrets / "server.crt").read_bytes(),
            timeout=30.0,
        ) as client:
            assert client.transform(make_table(5)).num_rows == 5
        check = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
        assert check[0] == "python"
        assert entry[place + 1] == instructions("EXPOSE")[0] == "8815"
        check = [sys.executable, *(one.replace("8815", str(server.port)) for one in check[1:])]
        assert subprocess.run(check, timeout=10, check=False).returncode == 0
    finally:
        assert server.stop() == 0
    assert subprocess.run(check, timeout=10, capture_output=True, check=False).returncode != 0
