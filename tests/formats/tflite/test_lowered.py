"""Calibrated plans of whole models, lowered and written."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("ai_edge_litert")

from intact.formats.tflite.runtime import Kernels, TfliteRuntime
from intact.formats.tflite.write import Io, write_tflite
from intact.plan import QuantizedGraph
from intact.program.layout import Layout
from intact.program.lower import lower
