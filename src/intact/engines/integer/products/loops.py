"""The compiled loops of convolutions: what is too thin for matrix products, or follows them.

They are compiled when a program first needs them, for the float type that its sums need: their
arrays are all made by the callers, so that no more than two types ever come.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from intact.engines.integer.products.windows import Floats, Triple


@njit(cache=True, nogil=True)
def depthwise(
    data: Floats,
    weights: Floats,
    outputs: Triple,
    kernel: Triple,
    strides: Triple,
    dilations: Triple,
    products: Floats,
) -> None:
    """Write exact sums; the types are those of `exact_type` for them.

    A whole line of the output is computed at once, tap by tap: that is one run of memory, however
    few channels there are.

    Args:
        data: ``[phases, N, D, H, L]``, padded; see `phases_of`.
        weights: ``[multiplier, taps, out W * C]``, each tap repeated for every window of a line.
        outputs: Windows by axis.
        kernel: Taps by axis.
        strides: Steps between windows.
        dilations: Steps between taps.
        products: Written, ``[N * out D * out H, out W * C, multiplier]``.
    """
    run = weights.shape[2]
    channels = run // outputs[2]
    sums = np.empty(run, data.dtype)
    for row in range(products.shape[0]):
        out_h = row % outputs[1]
        out_d = row // outputs[1] % outputs[0]
        image = row // (outputs[1] * outputs[0])
        for copy in range(weights.shape[0]):
            sums[:] = 0
            for line in range(kernel[0] * kernel[1]):
                d = out_d * strides[0] + line // kernel[1] * dilations[0]
                h = out_h * strides[1] + line % kernel[1] * dilations[1]
                for start in range(0, kernel[2], 3):
                    # Three taps at once: sums are loaded and stored a third as often. Taps that
                    # the kernel lacks repeat the first one, and are not added.
                    taps = min(kernel[2] - start, 3)
                    at = start * dilations[2]
                    begin = at // strides[2] * channels
                    first = data[at % strides[2], image, d, h, begin : begin + run]
                    at = (start + taps // 2) * dilations[2]
                    begin = at // strides[2] * channels
                    second = data[at % strides[2], image, d, h, begin : begin + run]
                    at = (start + taps - 1) * dilations[2]
                    begin = at // strides[2] * channels
                    third = data[at % strides[2], image, d, h, begin : begin + run]
                    tap = line * kernel[2] + start
                    by_first = weights[copy, tap]
                    by_second = weights[copy, tap + taps // 2]
                    by_third = weights[copy, tap + taps - 1]
                    if taps == 3:
                        for c in range(run):
                            sums[c] += (
                                first[c] * by_first[c]
                                + second[c] * by_second[c]
                                + third[c] * by_third[c]
                            )
                    elif taps == 2:
                        for c in range(run):
                            sums[c] += first[c] * by_first[c] + third[c] * by_third[c]
                    else:
                        for c in range(run):
                            sums[c] += first[c] * by_first[c]
            target = products[row]
            for c in range(run):
                target[c, copy] = sums[c]


@njit(cache=True, nogil=True)
def scatter(
    products: Floats,
    sizes: Triple,
    outputs: Triple,
    kernel: Triple,
    strides: Triple,
    dilations: Triple,
    begins: Triple,
    sums: Floats,
) -> None:
    """Add what each input element of a transposed convolution gives to the outputs it reaches.

    Args:
        products: ``[groups, N * D * H * W, taps * out / groups]``.
        sizes: D, H and W.
        outputs: The lengths of the result.
        kernel: Taps by axis.
        strides: Steps between the results of neighbouring elements.
        dilations: Steps between taps.
        begins: What is cut off before the first element of the result.
        sums: ``[N, *outputs, out]``, added to.
    """
    groups = products.shape[0]
    channels = sums.shape[4] // groups
    for row in range(products.shape[1]):
        w = row % sizes[2]
        h = row // sizes[2] % sizes[1]
        d = row // (sizes[2] * sizes[1]) % sizes[0]
        image = row // (sizes[2] * sizes[1] * sizes[0])
        for tap in range(kernel[0] * kernel[1] * kernel[2]):
            tap_w = tap % kernel[2]
            tap_h = tap // kernel[2] % kernel[1]
            tap_d = tap // (kernel[2] * kernel[1])
            out_d = d * strides[0] + tap_d * dilations[0] - begins[0]
            out_h = h * strides[1] + tap_h * dilations[1] - begins[1]
            out_w = w * strides[2] + tap_w * dilations[2] - begins[2]
            if 0 <= out_d < outputs[0] and 0 <= out_h < outputs[1] and 0 <= out_w < outputs[2]:
                for group in range(groups):
                    target = sums[image, out_d, out_h, out_w]
                    source = products[group, row]
                    for c in range(channels):
                        target[group * channels + c] += source[tap * channels + c]
