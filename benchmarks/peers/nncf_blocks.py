"""Compress the weights of an ONNX model with NNCF: MODEL SAMPLES.npz OUTPUT SCHEME METHOD.

SAMPLES.npz has, for each input of the model, the values of all samples along a first axis. The
scheme is ``int4``: symmetric, blocks of 32, the table and the last layer in int8, as its default
has it: a table in 4 bits makes a file that does not load. Methods: ``nearest``, and ``awq``, which
is AWQ with scale estimation on the samples. A length that is no multiple of 32 has groups of the
largest power of two that fits.
"""

import json
import sys
import time

import numpy as np
import onnx

# This folder holds scripts with names of packages.
sys.path.pop(0)

import nncf
from nncf.quantization.advanced_parameters import (
    AdvancedCompressionParameters,
    GroupSizeFallbackMode,
)


def main() -> None:
    """Read, compress, write; print the seconds that took."""
    model_path, samples_path, output, scheme, method = sys.argv[1:]
    if scheme != "int4":
        sys.exit(f"this script has no {scheme}")
    start = time.perf_counter()
    all_ = dict(np.load(samples_path))
    count = len(next(iter(all_.values())))
    samples = [{name: values[i] for name, values in all_.items()} for i in range(count)]
    more = {}
    if method == "awq":
        more = {"dataset": nncf.Dataset(samples), "subset_size": count}
        more |= {"awq": True, "scale_estimation": True}
    made = nncf.compress_weights(
        onnx.load(model_path),
        mode=nncf.CompressWeightsMode.INT4_SYM,
        group_size=32,
        ratio=1.0,
        # It takes the frequencies of a rotary embedding for weights, in a form that does not run.
        ignored_scope=nncf.IgnoredScope(patterns=[".*rotary.*"], validate=False),
        advanced_parameters=AdvancedCompressionParameters(
            group_size_fallback_mode=GroupSizeFallbackMode.ADJUST
        ),
        **more,
    )
    onnx.save(made, output)
    print(json.dumps({"version": nncf.__version__, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
