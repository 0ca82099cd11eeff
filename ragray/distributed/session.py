"""Joining a Ray cluster, or starting one on this machine for the length of a job, with Ray's noise kept away."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ragray.config import Resources

# For every process of ours.  Each name is a documented setting of Ray, glibc or the library it belongs to.
_ENVIRONMENT = {
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",  # we draw our own
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",  # the default throttles reports to one in 2 s
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # glibc gives large blocks back to the kernel at every free and then faults the pages in again; keeping them made a
    # forward pass of the generator about a fifth faster.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
}
_QUIET_ENVIRONMENT = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_DEDUP_LOGS": "1", "PYTHONWARNINGS": "ignore"}


@contextmanager
def ray_session(verbose: bool = False) -> Iterator[None]:
    """Connect to the cluster that ``RAY_ADDRESS`` names, or start one here and stop it at the end.

    Joins a session that is already running in this process instead of starting a second one.  A cluster on this machine
    is private to the process (it neither joins nor is joined by others) and takes its CPUs from what Ray detects.
    """
    environment = _ENVIRONMENT if verbose else {**_ENVIRONMENT, **_QUIET_ENVIRONMENT}
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    import ray  # reads its environment on import

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    if address is None:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # nothing listens beyond this machine's loopback
    with warnings.catch_warnings():
        if not verbose:
            warnings.simplefilter("ignore")
        ray.init(
            address=address or "local",
            namespace="ragray",
            logging_level=logging.INFO if verbose else logging.ERROR,
            log_to_driver=verbose,
            include_dashboard=None if address else True,
            runtime_env={"env_vars": {name: os.environ[name] for name in environment}},
        )
    if not verbose:
        import ray.data  # sets its own levels when it is imported

        for name in ("ray", "ray.data", "ray.train", "ray.serve"):
            logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def num_cluster_cpus() -> int:
    """The CPUs of the whole cluster, at least 1."""
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@dataclass(frozen=True, slots=True)
class ActorPool:
    """How many actors, and what each of them computes with."""

    actors: int
    threads: int
    gpus: float


def actor_pool(actors: int | None, resources: Resources) -> ActorPool:
    """The pool that uses the whole cluster, within what the settings say.

    Without settings: an actor a GPU, or else single-threaded actors, one a CPU, since then nothing waits at a barrier
    when another process takes a core.  Fewer actors share the CPUs among them as threads.
    """
    import ray

    cpus = num_cluster_cpus()
    if resources.use_gpu:
        gpus = max(1, int(ray.cluster_resources().get("GPU", 1)))
        return ActorPool(min(actors or gpus, gpus), resources.threads_per_worker or 1, 1)
    wanted = actors or cpus // (resources.threads_per_worker or 1)
    pool = max(1, min(wanted, cpus))
    node_cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    most = min((count for count in node_cpus if count), default=1)
    return ActorPool(pool, min(resources.threads_per_worker or cpus // pool, most), 0)
