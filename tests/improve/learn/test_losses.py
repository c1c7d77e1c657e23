"""The float model as a teacher: by ONNX Runtime or by a copy of the module, the same."""

from __future__ import annotations

import pytest
import torch

from intact.errors import UsageError
from intact.improve.learn.losses import (
    Distillation,
    by_weights,
    device_of,
    named_device,
    teacher_of,
)
from intact.improve.learn.module import QuantizedModule
from tests.models import ModelBuilder
from tests.plans import calibrated


def module() -> QuantizedModule:
    b = ModelBuilder()
    x = b.input("image", ["batch", 3, 8, 8])
    y = b.node("Relu", b.node("Conv", x, b.weight(4, 3, 3, 3), b.weight(4)))
    b.output(b.node("Gemm", b.node("Flatten", y), b.weight(144, 5)))
    return QuantizedModule(calibrated(b.build(), "onnxruntime"))


def test_both_teach_the_float_model() -> None:
    made = module()
    batch = {"image": torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))}
    by_runtime, copied = teacher_of(made)(batch), by_weights(made)(batch)
    for one, other in zip(by_runtime, copied, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert not torch.equal(by_runtime[0], made(**batch))


def test_a_copy_does_not_learn() -> None:
    made = module()
    batch = {"image": torch.ones(2, 3, 8, 8)}
    teacher = by_weights(made)
    (before,) = teacher(batch)
    with torch.no_grad():
        for each in made.parameters():
            each.add_(1)
    torch.testing.assert_close(teacher(batch)[0], before, rtol=0, atol=0)


def test_devices_are_named() -> None:
    assert named_device("cpu") == device_of(module())
    assert named_device("auto").type in {"cpu", "cuda"}
    for name in ("gpu", "cuda:77"):
        with pytest.raises(UsageError, match="give cpu or cuda"):
            named_device(name)


def test_without_labels_an_offset_counts() -> None:
    teacher = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    moved = teacher + 3  # the same distribution, another embedding
    assert float(Distillation([teacher], has_labels=True)([moved], [teacher])) < 1e-6
    assert float(Distillation([teacher])([moved], [teacher])) > 1
    assert float(Distillation([teacher])([teacher], [teacher])) < 1e-6
