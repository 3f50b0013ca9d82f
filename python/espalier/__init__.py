"""Reads what Espalier writes: checkpoints, metrics and exported models, as numpy arrays.

    import espalier
    checkpoint = espalier.open_checkpoint("runs/tiny")      # the latest of a run
    checkpoint["parameters/model.norm.weight"][:10]         # reads ten elements
    espalier.read_metrics("runs/tiny")["loss"]              # one element per step
    espalier.plot(["runs/one", "runs/two"], out="loss.png")
    print(espalier.compare("runs/one", "runs/two"))

Nothing here writes into a run, and a run that is still training can be read.
"""
from .checkpoint import Checkpoint, open_checkpoint
from .comparison import Comparison, compare
from .errors import DataError, Error, UnknownName, UsageError
from .export import Export, open_export
from .metrics import Columns, Metrics, read_metrics
from .pictures import plot
from .tensors import Tensor, Tensors

__version__ = "0.3.1"

__all__ = [
    "Checkpoint", "Columns", "Comparison", "DataError", "Error", "Export", "Metrics", "Tensor", "Tensors",
    "UnknownName", "UsageError", "compare", "open_checkpoint", "open_export", "plot", "read_metrics"
]
