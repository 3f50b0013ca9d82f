"""Layouts of small models that run on emulated GPUs over NCCL, and environments of such runs. Standard library only."""
import os, sys

from .runs import ENVIRONMENT


def skip_without_module():
    if not os.path.exists(os.environ.get("ESPALIER_CUDA_MODULE", "")):
        print("skipped: ESPALIER_CUDA_MODULE names no emulated module")
        sys.exit(77)


def environment(**settings):
    """Environment of the following runs; None removes a variable."""
    for name, value in settings.items():
        ENVIRONMENT.pop(name, None)
        if value is not None:
            ENVIRONMENT[name] = value


def pipeline(schedule, chunks, *more):
    return [
        "parallel.pp=2", f"pipeline.schedule={schedule}", f"pipeline.chunks={chunks}",
        f"model.layers={max(2, 2 * chunks)}", *more
    ]


LAYOUTS = [
    (2, pipeline("1f1b", 1, "model.tie_embeddings=true")),
    (2, pipeline("gpipe", 1)),
    (2, pipeline("interleaved", 2)),
    (2, pipeline("zb-h1", 1)),
    (2, pipeline("zbv", 2)),
    (2, pipeline("dualpipev", 2)),
    (4, pipeline("1f1b", 1, "parallel.tp=2", "precision.compute=bf16")),
    (4, pipeline("zbv", 2, "parallel.dp_shard=2")),
    (2, ["model.layers=2", "parallel.tp=2"]),
    (3, ["model.layers=2", "parallel.dp_shard=3", "batch.global=6", "parallel.reduce=microbatch"]),
    (2, ["model.layers=2", "parallel.cp=2", "parallel.context=all_to_all"]),
    (4, ["model.layers=2", "parallel.cp=2", "parallel.tp=2", "parallel.context=ring"]),
    (4, ["model.layers=2", "parallel.dp_replicate=2", "parallel.dp_shard=2", "parallel.zero=2"]),
]
