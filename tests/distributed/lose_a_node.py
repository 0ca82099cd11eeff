"""A program that embeds passages on a cluster of two nodes and loses one of them while it does.

python lose_a_node.py PASSAGES EMBEDDINGS MODEL RESULT.json
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

_SECONDS_BETWEEN_CHECKS = 0.5


def main(passages: Path, folder: Path, model: str, result: Path) -> None:
    import ray
    from ray.cluster_utils import Cluster

    from ragray.config import EmbedConfig, EncoderConfig
    from ragray.distributed.embedding import embed_passages

    pause = int(1000 * _SECONDS_BETWEEN_CHECKS)
    health = {f"health_check_{name}_ms": pause for name in ("initial_delay", "period", "timeout")}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "_system_config": {**health, "health_check_failure_threshold": 3}},
    )
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

    files_at_loss: list[int] = []

    def lose() -> None:
        while len(list(folder.glob("embeddings-*.parquet"))) < 3:
            time.sleep(0.02)
        cluster.remove_node(nodes[1], allow_graceful=False)
        files_at_loss.append(len(list(folder.glob("embeddings-*.parquet"))))

    threading.Thread(target=lose, daemon=True).start()
    summary = embed_passages(
        passages,
        folder,
        model,
        EncoderConfig(model="tiny"),
        EmbedConfig(dtype="float32", passages_per_file=20),
        num_actors=2,
        threads=1,
        tokens_per_batch=300,
        gpus_per_actor=0,
        progress=lambda done, total: None,
    )
    alive = sum(node["Alive"] for node in ray.nodes())
    result.write_text(json.dumps({"summary": summary, "files_at_loss": files_at_loss, "nodes_alive": alive}))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    os.environ["RAY_AUTH_MODE"] = "disabled"
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
