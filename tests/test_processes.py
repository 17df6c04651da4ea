"""Threads and processes in all combinations: the bits of one thread, or a clear error, and never a hang.

Every test is a process of its own with a limit of time. What it computes is compared with what this process
computes on one thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap

import numba
import numpy as np
import pytest

from dpmd_fast import Budget, DPManifoldDenoiser, release_atlas, release_moments

LIMIT = 240  # seconds for a process: a hang is a failure
BUDGET = Budget(2.0, 1e-5)
LIBRARIES = os.path.join(sys.prefix, "lib")  # where pip puts that of tbb
TBB_MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists(f"{LIBRARIES}/libtbb.so.12"), reason="tbb is not installed"),
]
tbb = pytest.param("tbb", marks=TBB_MARKS)
slow_omp, slow_workqueue = (pytest.param(name, marks=pytest.mark.slow) for name in ("omp", "workqueue"))
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def circle(n, seed):
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0.0, 2.0 * np.pi, n)
    return np.c_[np.cos(angle), np.sin(angle)] + 0.05 * rng.normal(size=(n, 2))


Y, Z = circle(4000, 0), circle(300, 1)


def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def moments(seed=0, n_threads=None):
    return digest(
        release_moments(Y, Z[:40], bandwidth=0.5, budget=BUDGET, seed=seed, n_threads=n_threads).values
    )


def atlas(seed=0, n_threads=None):
    made = release_atlas(Y, Z, dim=1, bandwidth=0.5, rounds=2, budget=BUDGET, seed=seed, n_threads=n_threads)
    return digest(made.transform(Z, n_threads))


def algorithm2(seed=0, n_threads=None):
    model = DPManifoldDenoiser(0.5, 1, BUDGET, mechanism="projector", seed=seed, n_threads=n_threads)
    return digest(model.fit(Y).transform(Z))


def everything(seed=0, n_threads=None):
    return [work(seed, n_threads) for work in (moments, atlas, algorithm2)]


def used_layer():
    """The threading layer of this process; None if it has run no parallel kernel."""
    try:
        return numba.threading_layer()
    except ValueError:
        return None


def told(seed=0):
    """What a process computes, and on which layer."""
    return [everything(seed), used_layer()]


def drawn(_=None):
    """A private release: no two may be equal."""
    return digest(release_moments(Y, Z[:5], bandwidth=0.5, budget=BUDGET).values)


def answered(call, *arguments):
    """What a call gives, or what it complains about."""
    try:
        return call(*arguments)
    except RuntimeError as error:
        return str(error)


@pytest.fixture(scope="module")
def expected():
    return everything(0, n_threads=1)


def run(tmp_path, code, layer=None):
    """What a program prints, as JSON; it finds the functions above, and its parts find the program.

    It has to come to its end by itself, too. Only on tbb, where that may hang, it is left without one.
    """
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, sys, threading\n"
        "from test_processes import *\n\n"
        'if __name__ == "__main__":\n'
        + textwrap.indent(textwrap.dedent(code), "    ")
        + "\n    sys.stdout.flush()\n"
        '    if used_layer() == "tbb":\n'
        "        os._exit(0)\n"
    )
    settings = {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__)), "DPMD_FAST_CACHE": "1"}
    if layer is not None:
        settings["NUMBA_THREADING_LAYER"] = layer
    if layer == "tbb":
        settings["LD_LIBRARY_PATH"] = LIBRARIES
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


# --- Python threads


@pytest.mark.parametrize("layer", [slow_omp, "workqueue", tbb])
@pytest.mark.parametrize("first", [pytest.param(False, marks=pytest.mark.slow), True])
def test_threads_that_release_and_transform_at_once(tmp_path, expected, layer, first):
    """Also where no kernel was used before, so that the threads start the layer together."""
    answers, used = run(
        tmp_path,
        f"""
        from concurrent.futures import ThreadPoolExecutor
        if not {first}:
            everything()
        with ThreadPoolExecutor(5) as pool:
            going = [pool.submit(work) for _ in range(3) for work in (moments, atlas, algorithm2)]
            answers = [one.result() for one in going]
        print(json.dumps([answers, used_layer()]))
        """,
        layer,
    )
    assert used == layer
    assert answers == 3 * expected


@pytest.mark.slow
def test_threads_with_limits_of_their_own(tmp_path, expected):
    answers = run(
        tmp_path,
        """
        from concurrent.futures import ThreadPoolExecutor
        before = numba.get_num_threads()
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda k: everything(0, 1 + k % 3), range(4)))
        print(json.dumps([answers, numba.get_num_threads() == before]))
        """,
    )
    assert answers == [[expected] * 4, True]


# --- forked and started processes

REFUSED = "cannot run in such a child: start worker processes with the 'spawn' or 'forkserver' method"


@needs_fork
@pytest.mark.parametrize("layer", ["omp", slow_workqueue, tbb])
def test_a_fork_after_use(tmp_path, expected, layer):
    parent, child, grandchild, after = run(
        tmp_path,
        """
        import multiprocessing
        fork = multiprocessing.get_context("fork")

        def below(depth, answers):
            answers.put([depth, answered(everything)])
            if depth < 2:
                process = fork.Process(target=below, args=(depth + 1, answers))
                process.start()
                process.join()

        parent, answers = everything(), fork.Queue()
        process = fork.Process(target=below, args=(1, answers))
        process.start()
        found = dict([answers.get(timeout=100), answers.get(timeout=100)])
        process.join()
        print(json.dumps([parent, found[1], found[2], everything()]))
        """,
        layer,
    )
    assert parent == after == expected
    for answer in (child, grandchild):
        if layer == "omp":
            assert REFUSED in answer
        else:
            assert answer == expected


@needs_fork
@pytest.mark.parametrize("layer", [slow_omp, "workqueue"])
def test_transforms_in_children_of_a_process_that_has_used_kernels(tmp_path, layer):
    """As under a server that loads models and warms up before it forks: in children and their children."""
    parent, children = run(
        tmp_path,
        """
        import multiprocessing
        from dpmd_fast import Atlas, Mixture, release_mixture
        from dpmd_fast.kernels import rows
        fork = multiprocessing.get_context("fork")
        rows.idle_cores = lambda: 8  # helpers come also on a busy machine
        queries = circle(20_000, 2)
        atlas = release_atlas(Y, Z, dim=1, bandwidth=0.5, rounds=2, budget=BUDGET, seed=0)
        atlas.save("a.dpmd")
        mixture = release_mixture(Y, components=2, rounds=1, budget=BUDGET, seed=0, accept_risk=True)

        def transformed(n_threads=None):
            loaded = Atlas.load("a.dpmd")  # makes its index in this process
            models = [atlas.transform, loaded.transform, lambda Z, n: mixture.transform(Z, 0.1, n)]
            return [digest(model(Q, n_threads)) for model in models for Q in (queries, queries[:1])]

        def below(depth, answers):
            noise = answered(drawn)
            answers.put([transformed(), transformed(2), transformed(1), noise])
            if depth < 2:
                process = fork.Process(target=below, args=(depth + 1, answers))
                process.start()
                process.join()

        parent, answers = [transformed(), transformed(2), transformed(1)], fork.Queue()
        processes = [fork.Process(target=below, args=(1, answers)) for _ in range(2)]
        for process in processes:
            process.start()
        children = [answers.get(timeout=100) for _ in range(4)]
        for process in processes:
            process.join()
        print(json.dumps([parent, children]))
        """,
        layer,
    )
    assert parent[1:] == [parent[0]] * 2
    assert [child[:3] for child in children] == [parent] * 4
    noise = [child[3] for child in children]
    if layer == "omp":
        assert all(REFUSED in one for one in noise)
    else:
        assert len(set(noise)) == 4


@needs_fork
def test_exact_noise_of_a_forked_child_is_its_own(tmp_path):
    """Its threads are the package's own, which a child can start anew; its words come from a new key."""
    found = run(
        tmp_path,
        """
        import multiprocessing
        from dpmd_fast.kernels import rows
        from dpmd_fast.privacy.entropy import EntropySource
        from dpmd_fast.privacy.noise import rounded_normals
        fork = multiprocessing.get_context("fork")
        rows.idle_cores = lambda: 8
        source = EntropySource()

        def draw(answers=None):
            made = digest(rounded_normals(source, 1 << 19, 1000, 2))
            return made if answers is None else answers.put(made)

        release_moments(Y, Z[:5], bandwidth=0.5, budget=BUDGET)  # starts the threading layer
        first, answers = draw(), fork.Queue()
        processes = [fork.Process(target=draw, args=(answers,)) for _ in range(2)]
        for process in processes:
            process.start()
        below = [answers.get(timeout=100) for _ in processes]
        for process in processes:
            process.join()
        print(json.dumps([first, draw(), *below]))
        """,
        "omp",
    )
    assert len(set(found)) == 4


@needs_fork
def test_transforms_alone_leave_the_threading_layer_to_the_children(tmp_path, expected):
    """A parent that only transforms starts no layer, so that its children can use one."""
    layers, child = run(
        tmp_path,
        """
        import multiprocessing
        from dpmd_fast import Atlas
        fork = multiprocessing.get_context("fork")

        def make():
            release_atlas(Y, Z, dim=1, bandwidth=0.5, rounds=2, budget=BUDGET, seed=0).save("a.dpmd")

        def work(answers):
            answers.put([answered(everything), used_layer()])

        maker = fork.Process(target=make)
        maker.start()
        maker.join()
        atlas = Atlas.load("a.dpmd")
        atlas.transform(circle(20_000, 2))
        before, answers = used_layer(), fork.Queue()
        process = fork.Process(target=work, args=(answers,))
        process.start()
        child = answers.get(timeout=100)
        process.join()
        print(json.dumps([before, child]))
        """,
        "omp",
    )
    assert layers is None
    assert child == [expected, "omp"]


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("layer", ["omp", "workqueue", tbb])
def test_a_fork_while_other_threads_compute(tmp_path, expected, layer):
    answers = run(
        tmp_path,
        """
        import signal
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                moments(1)

        everything()
        threads = [threading.Thread(target=busy) for _ in range(2)]
        for thread in threads:
            thread.start()
        answers = []
        for _ in range(5):
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                signal.alarm(40)  # ends a child that hangs
                os.write(write, json.dumps(answered(everything)).encode())
                os._exit(0)
            status = os.waitpid(pid, 0)[1]
            answers.append(json.loads(os.read(read, 10_000)) if status == 0 else status)
        stop.set()
        for thread in threads:
            thread.join()
        print(json.dumps(answers))
        """,
        layer,
    )
    assert len(answers) == 5
    for answer in answers:
        if layer == "omp":
            assert REFUSED in answer
        else:
            assert answer == expected


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("layer", ["omp", "workqueue", tbb])
def test_a_fork_before_use(tmp_path, expected, layer):
    answers, parent = run(
        tmp_path,
        """
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool:
            answers = pool.map(told, [0, 0], chunksize=1)
            pool.close()
            pool.join()
        print(json.dumps([answers, told()]))
        """,
        layer,
    )
    assert answers == [[expected, layer]] * 2
    assert parent == [expected, layer]


@pytest.mark.parametrize("layer", ["omp", slow_workqueue, tbb])
@pytest.mark.parametrize(
    "method", ["spawn", pytest.param("forkserver", marks=[pytest.mark.slow, needs_fork])]
)
def test_processes_that_are_started_anew(tmp_path, expected, method, layer):
    parent, answers, noise = run(
        tmp_path,
        f"""
        import multiprocessing
        parent = told()
        with multiprocessing.get_context("{method}").Pool(2) as pool:
            answers = pool.map(told, [0, 0], chunksize=1)
            noise = [drawn(), *pool.map(drawn, range(4))]
            pool.close()
            pool.join()
        print(json.dumps([parent, answers, noise]))
        """,
        layer,
    )
    assert [parent, *answers] == [[expected, layer]] * 3
    assert len(set(noise)) == 5


@needs_fork
def test_forked_children_draw_noise_of_their_own(tmp_path):
    noise = run(
        tmp_path,
        """
        import multiprocessing
        first = drawn()
        with multiprocessing.get_context("fork").Pool(3) as pool:
            print(json.dumps([first, *pool.map(drawn, range(6), chunksize=2), drawn()]))
        """,
        "workqueue",
    )
    assert len(set(noise)) == len(noise) == 8


# --- inside of other libraries


@pytest.mark.parametrize(
    ("backend", "layer"),
    [
        ("threading", "workqueue"),
        pytest.param("loky", "omp", marks=pytest.mark.slow),
        pytest.param("threading", "omp", marks=pytest.mark.slow),
        pytest.param("loky", "workqueue", marks=pytest.mark.slow),
        pytest.param("loky", "tbb", marks=TBB_MARKS),
        pytest.param("threading", "tbb", marks=TBB_MARKS),
    ],
)
def test_joblib(tmp_path, expected, backend, layer):
    answers, moved = run(
        tmp_path,
        f"""
        from joblib import Parallel, delayed
        everything()
        made = release_atlas(Y, Z, dim=1, bandwidth=0.5, rounds=2, budget=BUDGET, seed=0)
        with Parallel(2, backend="{backend}") as parallel:
            answers = parallel(delayed(told)(0) for _ in range(3))
            moved = parallel(delayed(made.transform)(part) for part in np.array_split(Z, 4))
        if "{backend}" == "loky":  # its workers stay for the next call, and end before this process does
            from joblib.externals.loky import get_reusable_executor
            get_reusable_executor().shutdown()
        print(json.dumps([answers, digest(np.concatenate(moved))]))
        """,
        layer,
    )
    assert answers == [[expected, layer]] * 3
    assert moved == expected[1]


@pytest.mark.parametrize(
    ("scheduler", "layer"),
    [
        pytest.param("threads", "workqueue", marks=pytest.mark.slow),  # tests/reference has one for the gate
        pytest.param("threads", "tbb", marks=TBB_MARKS),
        pytest.param("processes", "omp", marks=pytest.mark.slow),
        pytest.param("processes", "workqueue", marks=pytest.mark.slow),
        pytest.param("processes", "tbb", marks=TBB_MARKS),
        pytest.param("cluster", "workqueue", marks=pytest.mark.slow),
        pytest.param("cluster", "tbb", marks=TBB_MARKS),
    ],
)
def test_dask(tmp_path, expected, scheduler, layer):
    """Dask cuts the reference into tasks, and other tasks release on their own, all at once."""
    pytest.importorskip("distributed" if scheduler == "cluster" else "dask.array")
    split, moved, nested = run(
        tmp_path,
        f"""
        import dask, dask.array as da
        from contextlib import ExitStack
        everything()
        with ExitStack() as open_now:
            if "{scheduler}" == "cluster":
                from distributed import Client, LocalCluster
                workers = LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None)
                open_now.enter_context(workers)
                open_now.enter_context(Client(workers))
            else:
                dask.config.set(scheduler="{scheduler}", num_workers=3)
            if "{scheduler}" == "processes":  # one pool for all: Dask would start a new one every time
                from concurrent.futures import ProcessPoolExecutor
                from multiprocessing import get_context
                pool = open_now.enter_context(ProcessPoolExecutor(2, get_context("spawn")))
                dask.config.set(pool=pool)
            lazy = da.from_array(Y, chunks=(700, 2))
            split = release_moments(lazy, Z[:40], bandwidth=0.5, budget=BUDGET, seed=0)
            made = release_atlas(lazy, Z, dim=1, bandwidth=0.5, rounds=2, budget=BUDGET, seed=0)
            moved = made.transform(da.from_array(Z, chunks=(50, 2))).compute()
            nested = dask.compute(*[dask.delayed(told)(0, dask_key_name=str(k)) for k in range(3)])
        print(json.dumps([digest(split.values), digest(moved), nested]))
        """,
        layer,
    )
    assert [split, moved] == expected[:2]
    assert nested == [[expected, layer]] * 3


# --- the folder of compiled kernels, and other Numba code

ONE_KERNEL = """
import errno, sys
from dpmd_fast.kernels.jit import kernel
if sys.argv[1] == "full":
    import numba.core.caching
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")
    numba.core.caching.IndexDataCacheFile.save = full
@kernel
def after(x):
    return x + 1
print(after(41))
"""


def test_a_folder_of_kernels_that_is_full_or_damaged_costs_time_only(tmp_path):
    program, folder = tmp_path / "one_kernel.py", tmp_path / "kernels"
    program.write_text(ONE_KERNEL)
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "DPMD_FAST_CACHE": "1"}

    def answer(how):
        command = [sys.executable, "-W", "error", str(program), how]
        made = subprocess.run(
            command, env=settings, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert made.stdout == "42\n", made.stderr[-2000:]
        return [path for path in folder.rglob("*") if path.is_file() and "one_kernel" in str(path)]

    assert answer("full") == []
    kept = answer("plain")
    assert len(kept) == 2
    for path in kept:
        path.write_bytes(b"not what it was")
    answer("plain")


@needs_fork
def test_a_fork_after_other_numba_code_is_told(tmp_path):
    program = tmp_path / "other.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys
            import numba, numpy as np
            @numba.njit(parallel=True)
            def other(x):
                for i in numba.prange(len(x)):
                    x[i] += 1.0
            from dpmd_fast import Budget, release_moments
            other(np.zeros(100))
            child = os.fork()
            if child == 0:
                Y = np.random.default_rng(0).normal(size=(500, 2))
                try:
                    release_moments(Y, Y[:9] + 0.1, bandwidth=1.0, budget=Budget(1.0, 1e-6), seed=0)
                except RuntimeError as error:
                    print(error, flush=True)
                    os._exit(7)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """
        )
    )
    made = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "NUMBA_THREADING_LAYER": "omp", "DPMD_FAST_CACHE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert "spawn" in made.stdout, made.stderr[-2000:]
    assert made.stdout.endswith("\n7\n")
