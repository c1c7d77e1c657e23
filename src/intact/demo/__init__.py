"""A small trained model and its images, so that everything can be tried without a download.

The model, ``digits.onnx``, tells scikit-learn's handwritten digits apart: input ``image`` float32
[N, 1, 8, 8] with pixels 0..16 as they are, output ``logits`` float32 [N, 10]. The images are
``.npz`` files with the keys ``image`` (uint8 [N, 1, 8, 8]) and ``labels`` (int64 [N]); the
calibration images were among those trained on, the test images were not.
``tools/train_digits.py`` makes all three files.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

__all__ = ["calibration_path", "model_path", "test_path"]


def model_path() -> Path:
    """Return the path of the float model.

    >>> model_path().name
    'digits.onnx'
    """
    return _path("digits.onnx")


def calibration_path() -> Path:
    """Return the path of the 200 calibration images.

    >>> calibration_path().name
    'digits-calib.npz'
    """
    return _path("digits-calib.npz")


def test_path() -> Path:
    """Return the path of the 600 test images.

    >>> test_path().name
    'digits-test.npz'
    """
    return _path("digits-test.npz")


def _path(name: str) -> Path:
    # The package is always installed as files (there is no zip import: numba caches beside them).
    return Path(str(resources.files(__name__).joinpath(name)))
